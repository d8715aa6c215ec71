// Generated from openapi/v1.json by scripts/generate.mjs: do not change it here.

/** The permissions that apply. */
export type Authority = "user" | "root";

/** Class of an error. It determines the exit code of the CLI. */
export type Category = "validation" | "auth" | "not_found" | "conflict" | "quota" | "rate_limit" | "provider_unavailable" | "provider_timeout" | "internal";

/** Code of an error. */
export type Code = "INVALID_REQUEST" | "UNKNOWN_TEMPLATE" | "UNKNOWN_USER" | "CWD_NOT_FOUND" | "PROGRAM_NOT_FOUND" | "NOT_A_FILE" | "NOT_A_DIRECTORY" | "UNSUPPORTED_MEDIA_TYPE" | "RANGE_NOT_SATISFIABLE" | "MISDIRECTED_REQUEST" | "METHOD_NOT_ALLOWED" | "PAYLOAD_TOO_LARGE" | "MISSING_API_KEY" | "INVALID_API_KEY" | "INVALID_TICKET" | "PERMISSION_DENIED" | "NOT_FOUND" | "KEY_NOT_FOUND" | "ORG_NOT_FOUND" | "SESSION_NOT_FOUND" | "TERMINAL_NOT_FOUND" | "SANDBOX_NOT_FOUND" | "FILE_NOT_FOUND" | "EXEC_NOT_FOUND" | "TEMPLATE_NOT_FOUND" | "CONFLICT" | "FILE_EXISTS" | "SANDBOX_STOPPED" | "SANDBOX_PAUSED" | "STDIN_CLOSED" | "IDEMPOTENCY_MISMATCH" | "SANDBOX_FAILED" | "RATE_LIMITED" | "QUOTA_EXCEEDED" | "INTERNAL" | "UNSUPPORTED_BY_HOST" | "NO_CAPACITY" | "PROVIDER_TIMEOUT" | "DISK_FULL";

/** A command, without its environment variables. */
export type Command = CommandSummary & {
    execID: ExecId;
    /** In the sandbox's PID namespace. */
    pid: number;
    /** Position of the first byte of output that is still stored, if earlier output was discarded. */
    truncatedBefore?: number | null;
};

/** A command or a terminal in a session's history. */
export type CommandHistory = CommandSummary & {
    /** The command line was truncated. */
    cut?: boolean;
    /** Only for commands. */
    execID?: ExecId | null;
    /** Size of its output when it exited. */
    outputBytes?: number | null;
    /** Only for terminals. */
    ptyID?: string | null;
};

/** A command that has exited. */
export type CommandResult = Exit & {
    /** In milliseconds. */
    durationMs: number;
    execID: ExecId;
    /** Output contained invalid UTF-8, which was replaced; request base64 instead. */
    lossy?: boolean;
    /** At most 10 MiB. */
    stderr: string;
    /** At most 10 MiB. */
    stdout: string;
    /** Output was truncated; `…/output` has all of it. */
    truncated?: boolean;
};

/** A command, with its exit status once it has exited. */
export type CommandSummary = {
    args?: string[];
    cmd: string;
    cwd?: string | null;
    endedAt?: Time | null;
    /** Only after it has exited. */
    exitCode?: number | null;
    /** The kernel killed one of its processes because memory ran out. */
    oomKilled?: boolean;
    /** The signal that killed it. */
    signal?: number | null;
    startedAt: Time;
    state: string;
    tag?: string | null;
    /** Its deadline was exceeded. */
    timedOut?: boolean;
    user?: string | null;
};

/** Durations of the stages of a create, in milliseconds. */
export type CreateTimings = {
    clone: number;
    root: number;
    slot: number;
    start: number;
    total: number;
};

/** Encoding of output in JSON. */
export type Encoding = "text" | "base64";

/** An event of a sandbox. */
export type Event = {
    at: Time;
    /** Details, depending on the type. */
    data: Record<string, unknown>;
    eventID: EventId;
    /** Sequence number, increasing; the value for `after`. */
    number: number;
    sandboxID: SandboxId;
    /** For example `sandbox.created`. */
    type: string;
};

/** an event id */
export type EventId = string;

/** an exec id */
export type ExecId = string;

/** Exit status of a command. */
export type Exit = {
    /** 124 after a deadline, 137 after an OOM kill, 128 + n after signal n. */
    exitCode: number;
    /** The kernel killed one of its processes because memory ran out. */
    oomKilled?: boolean;
    /** The signal that killed it. */
    signal?: number | null;
    /** Its deadline was exceeded. */
    timedOut?: boolean;
};

/** Action when a sandbox's timeout or idle timeout ends. */
export type ExpiryAction = "destroy" | "stop" | "pause";

/** JSON body of an error response. */
export type Failure = {
    category: Category;
    code: Code;
    /** Values for programs, such as the `field` of a request or the `state` of a sandbox. */
    details?: Record<string, string>;
    /** Message for people. */
    error: string;
    /** How to resolve the error. */
    remedy?: string | null;
    /** The same as in the header `X-Request-ID` and in the server's log. */
    request_id?: RequestId | null;
    /** Seconds until a retry may succeed; only for temporary errors. */
    retry_after?: number | null;
};

/** Metadata of a file. */
export type FileInfo = {
    gid: number;
    isDir: boolean;
    /** Permission bits in octal. */
    mode: string;
    modifiedAt: Time;
    name: string;
    path: string;
    /** In bytes. */
    size: number;
    /** Target of a symbolic link. */
    target?: string | null;
    /** `file`, `directory`, `link` or `other`. */
    type: string;
    uid: number;
};

/** A search result. */
export type FoundFile = FileInfo & {
    /** Line number, from 1; only for text. */
    line?: number | null;
    /** The line. */
    text?: string | null;
};

export type FoundFiles = {
    results: FoundFile[];
    /** There are more results than `limit`. */
    truncated: boolean;
};

export type Health = {
    status: string;
    version: string;
};

/** State of the asynchronous write of the command history. */
export type JournalStatus = {
    /** Sandboxes with entries that are not written yet. */
    behind: number;
    /** Failed writes; each was retried. */
    failures: number;
    /** Commands that were discarded before they were written. */
    lost: number;
};

/** An API key. The secret is present only in the response that creates it. */
export type Key = {
    createdAt: Time;
    expiresAt?: Time | null;
    /** The secret; returned once, by the request that creates the key. */
    key?: string | null;
    keyID: KeyId;
    lastUsedAt?: Time | null;
    name: string;
    orgID: OrgId;
    /** First characters of the secret, for recognition. */
    prefix: string;
    revokedAt?: Time | null;
    scope: Scope;
};

/** a key id */
export type KeyId = string;

export type LogContent = {
    /** Position in the command's output. */
    position: number;
    /** The line with its newline, if that was written. */
    text: string;
} | {
    from: number;
    to: number;
} | Exit;

/** A line of output, a gap or an exit status. */
export type LogLine = LogContent & {
    execID: ExecId;
    /** Start time of the command. */
    startedAt: Time;
    stream: string;
};

/** New permission bits of a file. */
export type ModeChange = {
    authority?: Authority | null;
    /** In octal. */
    mode: string;
    path: string;
    user?: string | null;
};

/** Network mode of a sandbox. */
export type Network = "none" | "internet";

/** Action of a policy for destinations that no rule matches. */
export type NetworkDefault = "allow" | "deny";

export type NetworkRules = {
    /** Reachable addresses: IPv4 addresses or CIDR blocks, each with an optional `:port`. */
    allow?: string[];
    /** Action for addresses that no rule matches; default: `deny` if there are only `allow` rules, otherwise `allow`. */
    default?: NetworkDefault | null;
    /** Unreachable addresses, except those in `allow`. */
    deny?: string[];
    network?: Network | null;
};

/** Request to run a command. */
export type NewCommand = {
    args?: string[] | null;
    /** Respond at once with the command's id. */
    background?: boolean;
    /** A command line for `/bin/sh`; with `args`, a program. */
    cmd: string;
    /** Working directory; default: the user's home. */
    cwd?: string | null;
    encoding?: Encoding;
    /** Environment variables, added to those of the sandbox. */
    envs?: Record<string, string>;
    /** Keep stdin open for `…/stdin`. */
    openStdin?: boolean;
    /** The whole input; only in the foreground. */
    stdin?: string | null;
    /** A name for the command: `tag:NAME` is accepted instead of its id. */
    tag?: string | null;
    /** Deadline in seconds, after which the command and its descendants are killed; 0: none. Default: 60 in the foreground, none in the background. */
    timeout?: number | null;
    /** Name or UID; default: the template's user. */
    user?: string | null;
};

/** Request to create a directory. */
export type NewDirectory = {
    authority?: Authority | null;
    /** Permission bits in octal. */
    mode?: string | null;
    /** Required here or in the query. */
    path?: string | null;
    user?: string | null;
};

export type NewKey = {
    /** When the key expires. */
    expiresAt?: string | null;
    name: string;
    /** Org of the key; default: the caller's. Another org requires an admin. */
    orgID?: string | null;
    /** At most the caller's scope; default `sandbox:*`. */
    scope?: Scope | null;
};

/** Request to create an org. */
export type NewOrg = {
    /** Maximum number of sandboxes at the same time; `null`: no limit. */
    maxSandboxes?: number | null;
    /** Maximum timeout in seconds; `null`: no limit. */
    maxTimeout?: number | null;
    name: string;
};

/** The lifetime of a signed link to a port. */
export type NewPortLink = {
    /** In seconds. */
    expiresIn?: number | null;
};

/** Request to create a sandbox. All fields are optional. */
export type NewSandbox = {
    /** A second name, unique in the org. */
    alias?: string | null;
    /** Reachable addresses: IPv4 addresses or CIDR blocks, each with an optional `:port`. */
    allow?: string[];
    /** Activity resumes the sandbox while it is paused. */
    autoResume?: boolean | null;
    /** At most the server's `--max-cpus`, 4 by default. */
    cpuCount?: number | null;
    /** Unreachable addresses, except those in `allow`. */
    deny?: string[];
    /** In mebibytes; at most the server's `--max-disk`, 51200 by default. */
    diskMB?: number | null;
    /** `fsync` in the sandbox waits for the disk; see "What survives a power cut". */
    durable?: boolean;
    /** Environment variables of every command. Write-only: no response contains them. */
    envs?: Record<string, string>;
    /** In seconds; 0: no idle timeout. */
    idleTimeout?: number | null;
    /** In mebibytes; at most the server's `--max-memory`, 8192 by default. */
    memoryMB?: number | null;
    /** Key-value pairs of the caller: at most 64 entries and 16 KiB. */
    metadata?: Record<string, string>;
    network?: Network | null;
    /** `true` selects the network `internet`. */
    networkEnabled?: boolean | null;
    onIdle?: ExpiryAction | null;
    onTimeout?: ExpiryAction | null;
    /** Processes and threads. */
    pids?: number | null;
    /** Template of the root file system. */
    template?: string | null;
    /** The same as `template`. */
    templateID?: string | null;
    /** In seconds; 0: no timeout, if the org permits that. */
    timeout?: number | null;
};

/** Request for a signed URL. */
export type NewSignedUrl = {
    authority?: Authority;
    /** In seconds. */
    expiresIn?: number | null;
    path: string;
    user?: string | null;
};

/** Request to create a terminal. */
export type NewTerminal = {
    /** Arguments of the program. */
    args?: string[];
    /** Clamped to 1–500. */
    cols?: number | null;
    cwd?: string | null;
    envs?: Record<string, string>;
    /** Clamped to 1–500. */
    rows?: number | null;
    /** Program; default: a login shell. */
    shell?: string | null;
    /** A name for the terminal: `tag:NAME` is accepted instead of its id. */
    tag?: string | null;
    user?: string | null;
};

/** Request for a ticket; it has no fields. */
export type NewTicket = Record<string, never>;

/** An org. */
export type Org = {
    createdAt: Time;
    /** Maximum number of sandboxes at the same time; `null`: no limit. */
    maxSandboxes?: number | null;
    /** Maximum timeout in seconds; `null`: no limit. */
    maxTimeout?: number | null;
    name: string;
    orgID: OrgId;
};

/** Changes of an org; omitted fields stay unchanged. */
export type OrgChange = {
    /** Maximum number of sandboxes at the same time; `null`: no limit. */
    maxSandboxes?: number | null;
    /** Maximum timeout in seconds; `null`: no limit. */
    maxTimeout?: number | null;
    name?: string | null;
};

/** an org id */
export type OrgId = string;

/** New owner of a file. */
export type OwnerChange = {
    authority?: Authority | null;
    /** Name or GID; default: unchanged. */
    group?: string;
    /** Name or UID; default: unchanged. */
    owner?: string;
    path: string;
    user?: string | null;
};

/** Sizes of the warm pool. */
export type PoolStatus = {
    /** Unconfigured init processes. */
    embryos: number;
    /** Complete sandboxes without an owner. */
    warm: number;
};

/** A listening socket in a sandbox. */
export type Port = {
    address: string;
    port: number;
};

/** A signed link: it permits the use of one port until a time, without a key. */
export type PortLink = {
    expiresAt: Time;
    /** The same permission for requests by the headers `E2b-Sandbox-Id` and `E2b-Sandbox-Port`: sent as `E2b-Traffic-Access-Token`. */
    token: string;
    /** `null` if the server has no domain for ports (setting `domain`). */
    url?: string | null;
};

export type Readiness = {
    /** Why the server is not ready. */
    error?: string | null;
    journals?: JournalStatus | null;
    pool: PoolStatus;
    /** `ready` or `not_ready`. */
    status: string;
};

/** a request id */
export type RequestId = string;

export type Resume = {
    /** In seconds from now; default: the remaining time. */
    timeout?: number | null;
};

/** Resource usage of a sandbox at one time. Names are E2B's where E2B has one. */
export type Sample = {
    cpuCount: number;
    /** CPU time since the sandbox was started. */
    cpuSeconds: number;
    /** CPU usage since the previous sample; 100 is all CPUs of the sandbox. */
    cpuUsedPct: number;
    /** Disk limit, in bytes. */
    diskTotal: number;
    /** In bytes, at the last measurement. */
    diskUsed?: number | null;
    /** Page cache, in bytes. */
    memCache: number;
    /** Memory limit, in bytes. */
    memTotal: number;
    /** In bytes, without `memCache`. */
    memUsed: number;
    /** Processes and threads. */
    pids: number;
    timestamp: Time;
    /** Unix time in seconds. */
    timestampUnix: number;
};

/** A sandbox. */
export type Sandbox = {
    /** A second name, accepted in paths instead of the id. */
    alias?: string | null;
    /** Activity resumes the sandbox while it is paused. */
    autoResume: boolean;
    cpuCount: number;
    createdAt: Time;
    /** When a stopped sandbox is deleted. */
    deleteAt?: Time | null;
    deletedAt?: Time | null;
    /** The kernel enforces `diskMB`. `false`: `diskMB` is advisory, because the server's storage has no quotas. */
    diskEnforced: boolean;
    /** In mebibytes. */
    diskMB: number;
    /** `fsync` in the sandbox waits for the disk. */
    durable: boolean;
    /** When the timeout ends; `null` if there is none or the sandbox does not run. */
    endAt?: Time | null;
    /** Why the create failed. */
    error?: string | null;
    /** In seconds. */
    idleTimeout?: number | null;
    /** In mebibytes. */
    memoryMB: number;
    /** Key-value pairs of the caller. */
    metadata: Record<string, string>;
    network: Network;
    onIdle: ExpiryAction;
    onTimeout: ExpiryAction;
    /** Processes and threads. */
    pids: number;
    reason?: StopReason | null;
    sandboxID: SandboxId;
    /** The session of this sandbox in the history. */
    sessionID: SessionId;
    startedAt?: Time | null;
    state: SandboxState;
    /** The same as `state`, except that `failed` is spelled `error`. */
    status: string;
    stoppedAt?: Time | null;
    templateID: string;
    /** In seconds; 0: no timeout. */
    timeout: number;
    /** Only in the response of the request that creates the sandbox. */
    timings?: CreateTimings | null;
};

/** Changes of a sandbox; omitted fields stay unchanged. */
export type SandboxChange = {
    /** `null` removes the alias. */
    alias?: string | null;
    autoResume?: boolean | null;
    /** At most the server's `--max-cpus`, 4 by default. */
    cpuCount?: number | null;
    /** In mebibytes; at most the server's `--max-disk`, 51200 by default. */
    diskMB?: number | null;
    /** In seconds; 0: no idle timeout. */
    idleTimeout?: number | null;
    /** In mebibytes; at most the server's `--max-memory`, 8192 by default. */
    memoryMB?: number | null;
    /** Replaces all metadata. */
    metadata?: Record<string, string> | null;
    onIdle?: ExpiryAction | null;
    onTimeout?: ExpiryAction | null;
    pids?: number | null;
};

/** a sandbox id */
export type SandboxId = string;

/** Network and rules of a sandbox, in the form of the request that sets them. */
export type SandboxNetwork = {
    /** Addresses or blocks that the sandbox may reach, each with an optional `:port`. */
    allow: string[];
    /** Action for addresses that no rule matches. */
    default: NetworkDefault;
    /** Addresses or blocks that the sandbox may not reach, except those in `allow`. */
    deny: string[];
    network: Network;
};

/** Lifecycle state of a sandbox. */
export type SandboxState = "creating" | "running" | "paused" | "stopping" | "stopped" | "failed";

/** Permissions of an API key. Each scope includes the ones after it. */
export type Scope = "admin" | "sandbox:*" | "sandbox:read";

/** A session: a sandbox and the size of its history. */
export type Session = Sandbox & {
    commandCount: number;
    terminalCount: number;
};

/** a session id */
export type SessionId = string;

export type Signal = {
    signal: number;
};

/** A URL that permits one action on one file until a time, without a key. */
export type SignedUrl = {
    expiresAt: Time;
    url: string;
};

/** An entry of an archive that was not unpacked. */
export type SkippedEntry = {
    name: string;
    why: string;
};

/** A command that runs in the background. */
export type StartedCommand = {
    execID: ExecId;
    /** In the sandbox's PID namespace. */
    pid: number;
};

/** Progress of stdin. */
export type StdinOffset = {
    /** Number of input bytes accepted so far: the next `offset`. */
    taken: number;
};

/** Why a sandbox stopped without a stop request. */
export type StopReason = "host_restart" | "exited" | "oom" | "keeper_lost" | "timeout" | "idle";

/** A template. */
export type Template = {
    createdAt: Time;
    /** Sandboxes use this template by default. */
    default: boolean;
    /** Number of files, directories and links. */
    files: number;
    /** The same as `templateID`. */
    name: string;
    /** Total size of its files, in bytes. */
    size: number;
    /** Origin of its files. */
    source: string;
    /** The user may become root with `sudo`. */
    sudo: boolean;
    templateID: string;
    /** Default user of commands. */
    user: string;
};

/** A terminal. */
export type Terminal = {
    cols: number;
    /** In the sandbox's PID namespace. */
    pid: number;
    ptyID: string;
    rows: number;
    sandboxID: SandboxId;
    /** Alias of `ptyID`. */
    sessionID: string;
};

/** Size of a terminal. */
export type TerminalSize = {
    /** Clamped to 1–500. */
    cols: number;
    /** Clamped to 1–500. */
    rows: number;
};

/** A ticket. */
export type Ticket = {
    expiresAt: Time;
    /** The secret; returned once. */
    ticket: string;
};

/** A time: RFC 3339 with microseconds. */
export type Time = string;

export type Timeout = {
    /** In seconds from now; 0: no timeout, if the org permits that. */
    timeout: number;
};

/** Source and destination. */
export type Transfer = {
    authority?: Authority | null;
    from: string;
    /** Overwrite the target if it exists. */
    replace?: boolean;
    to: string;
    user?: string | null;
};

/** The result of unpacking an archive. */
export type UnpackSummary = {
    /** Size of their contents. */
    bytes: number;
    /** Entries that were unpacked. */
    entries: number;
    /** Entries that were skipped. */
    skipped: number;
    /** The first skipped entries. */
    skippedEntries: SkippedEntry[];
};
