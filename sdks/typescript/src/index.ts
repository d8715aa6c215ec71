/** The public API for Node and browsers. */

export { Client, type CallOptions, type ConnectionOptions } from "./client.js";
export { CommandHandle, type CommandResult, type OutputEvent } from "./command-handle.js";
export { Commands, type BackgroundOptions, type ForegroundOptions, type RunOptions } from "./commands.js";
export { AtollError, CommandTimeoutError, ConnectionError, TimeoutError, UnauthenticatedError, UnsupportedError } from "./error.js";
export { Files, type Contents, type DirectoryOptions, type FileOptions, type Progress, type TransferOptions, type Transferred } from "./files.js";
export type * as api from "./generated/api.js";
export * from "./generated/errors.js";
export { Terminals, type TerminalOptions } from "./pty.js";
export { Sandbox, type CreateOptions, type Forward, type ForwardOptions, type ListOptions } from "./sandbox.js";
export { Terminal } from "./terminal.js";
export { type ToolCall, type ToolSchema, callTool, toolSchemas } from "./tools.js";
export { Watch, type WatchEvent } from "./watch.js";
