// Made from openapi/v1.json by scripts/generate.mjs: do not change it here.

/** Whose rights count. */
export type Authority = "user" | "root";

/** The kind of a failure, for deciding what to do about it. */
export type Category = "validation" | "auth" | "not_found" | "conflict" | "quota" | "rate_limit" | "provider_unavailable" | "provider_timeout" | "internal";

/** Every failure a caller can be told of. */
export type Code = "INVALID_REQUEST" | "UNKNOWN_TEMPLATE" | "UNKNOWN_USER" | "CWD_NOT_FOUND" | "PROGRAM_NOT_FOUND" | "NOT_A_FILE" | "NOT_A_DIRECTORY" | "UNSUPPORTED_MEDIA_TYPE" | "RANGE_NOT_SATISFIABLE" | "MISDIRECTED_REQUEST" | "METHOD_NOT_ALLOWED" | "PAYLOAD_TOO_LARGE" | "MISSING_API_KEY" | "INVALID_API_KEY" | "INVALID_TICKET" | "PERMISSION_DENIED" | "NOT_FOUND" | "KEY_NOT_FOUND" | "ORG_NOT_FOUND" | "SESSION_NOT_FOUND" | "TERMINAL_NOT_FOUND" | "SANDBOX_NOT_FOUND" | "FILE_NOT_FOUND" | "EXEC_NOT_FOUND" | "TEMPLATE_NOT_FOUND" | "CONFLICT" | "FILE_EXISTS" | "SANDBOX_STOPPED" | "SANDBOX_PAUSED" | "STDIN_CLOSED" | "IDEMPOTENCY_MISMATCH" | "SANDBOX_FAILED" | "RATE_LIMITED" | "QUOTA_EXCEEDED" | "INTERNAL" | "UNSUPPORTED_BY_HOST" | "NO_CAPACITY" | "PROVIDER_TIMEOUT" | "DISK_FULL";

/** A command. Its variables are not told. */
export type Command = CommandSummary & {
    execID: ExecId;
    /** Inside the sandbox. */
    pid: number;
    /** From which position on its output is whole, if the first of it is not kept any more. */
    truncatedBefore?: number | null;
};

/** A command or a terminal of a session's history. */
export type CommandHistory = CommandSummary & {
    /** The line was longer than is kept. */
    cut?: boolean;
    /** Of a command. */
    execID?: ExecId | null;
    /** How much it had written when it ended. */
    outputBytes?: number | null;
    /** Of a terminal. */
    ptyID?: string | null;
};

/** A command that has ended. */
export type CommandResult = Exit & {
    /** In milliseconds. */
    durationMs: number;
    execID: ExecId;
    /** Some bytes were no text: ask for base64. */
    lossy?: boolean;
    /** At most 10 MiB. */
    stderr: string;
    /** At most 10 MiB. */
    stdout: string;
    /** There is more: `…/output` has it. */
    truncated?: boolean;
};

/** What was run, and its result once it has ended. */
export type CommandSummary = {
    args?: string[];
    cmd: string;
    cwd?: string | null;
    endedAt?: Time | null;
    /** Once it has ended. */
    exitCode?: number | null;
    /** The kernel killed something of it for want of memory. */
    oomKilled?: boolean;
    /** What ended it. */
    signal?: number | null;
    startedAt: Time;
    state: string;
    tag?: string | null;
    /** Its deadline came first. */
    timedOut?: boolean;
    user?: string | null;
};

/** How long the stages of a create took, in milliseconds. */
export type CreateTimings = {
    clone: number;
    root: number;
    slot: number;
    start: number;
    total: number;
};

/** How bytes become JSON. */
export type Encoding = "text" | "base64";

/** Something that happened to a sandbox. */
export type Event = {
    at: Time;
    /** What there is to say about it. */
    data: Record<string, unknown>;
    eventID: EventId;
    /** Counts up: `after` goes on behind it. */
    number: number;
    sandboxID: SandboxId;
    /** Such as `sandbox.created`. */
    type: string;
};

/** an event id */
export type EventId = string;

/** an exec id */
export type ExecId = string;

/** How a command ended. */
export type Exit = {
    /** 124 after a deadline, 137 after an OOM kill, 128 + n after signal n. */
    exitCode: number;
    /** The kernel killed something of it for want of memory. */
    oomKilled?: boolean;
    /** What ended it. */
    signal?: number | null;
    /** Its deadline came first. */
    timedOut?: boolean;
};

/** What happens to a sandbox when its timeout or its idle timeout ends. */
export type ExpiryAction = "destroy" | "stop" | "pause";

/** What went wrong. */
export type Failure = {
    category: Category;
    code: Code;
    /** Values for programs, such as the `field` of a request or the `state` of a sandbox. */
    details?: Record<string, string>;
    /** For people: what is wrong, by name. */
    error: string;
    /** What to do about it. */
    remedy?: string | null;
    /** As in the header `X-Request-ID`, and in our logs. */
    request_id?: RequestId | null;
    /** When to try again, in seconds, for what passes by itself. */
    retry_after?: number | null;
};

/** What a path leads to, on the wire. */
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
    /** Where a link points. */
    target?: string | null;
    /** `file`, `directory`, `link` or `other`. */
    type: string;
    uid: number;
};

/** What was found. */
export type FoundFile = FileInfo & {
    /** Counted from 1, if text was looked for. */
    line?: number | null;
    /** That line. */
    text?: string | null;
};

export type FoundFiles = {
    results: FoundFile[];
    /** There is more than `limit`. */
    truncated: boolean;
};

export type Health = {
    status: string;
    version: string;
};

/** How much of the history of commands is not written yet. */
export type JournalStatus = {
    /** Sandboxes with something to be written. */
    behind: number;
    /** What could not be written, and was tried again. */
    failures: number;
    /** Commands that were forgotten before they could be written. */
    lost: number;
};

/** A key, and its secret when it is made. */
export type Key = {
    createdAt: Time;
    expiresAt?: Time | null;
    /** The secret: told once, by the request that makes it. */
    key?: string | null;
    keyID: KeyId;
    lastUsedAt?: Time | null;
    name: string;
    orgID: OrgId;
    /** The first characters of its secret, to tell it by. */
    prefix: string;
    revokedAt?: Time | null;
    scope: Scope;
};

/** a key id */
export type KeyId = string;

export type LogContent = {
    /** Where it begins in the command's output. */
    position: number;
    /** With its end, as far as it was written. */
    text: string;
} | {
    from: number;
    to: number;
} | Exit;

/** A line of a command, or what else there is to say of it. */
export type LogLine = LogContent & {
    execID: ExecId;
    /** When the command began. */
    startedAt: Time;
    stream: string;
};

/** Permission bits for what is there. */
export type ModeChange = {
    authority?: Authority | null;
    /** In octal. */
    mode: string;
    path: string;
    user?: string | null;
};

/** The network of a sandbox. */
export type Network = "none" | "internet";

/** What happens to what no rule names. */
export type NetworkDefault = "allow" | "deny";

export type NetworkRules = {
    /** What it may reach: IPv4 addresses or blocks, with `:port` perhaps. */
    allow?: string[];
    /** What happens to addresses that no rule names; `deny` if there are only rules in `allow`, else `allow`. */
    default?: NetworkDefault | null;
    /** What it may not reach. */
    deny?: string[];
    network?: Network | null;
};

/** A command as it is asked for. */
export type NewCommand = {
    args?: string[] | null;
    /** Answer at once, with its id. */
    background?: boolean;
    /** A line for `/bin/sh`; with `args`, a program. */
    cmd: string;
    /** The user's home if nothing is said. */
    cwd?: string | null;
    encoding?: Encoding;
    /** Variables that win over the sandbox's. */
    envs?: Record<string, string>;
    /** Input comes by `…/stdin`. */
    openStdin?: boolean;
    /** All its input; not in the background. */
    stdin?: string | null;
    /** A name to find it by: `tag:NAME` stands for its id. */
    tag?: string | null;
    /** When it is ended with everything it started, in seconds; 0 is never. 60 if nothing is said and it is waited for. */
    timeout?: number | null;
    /** Name or number; the template's if nothing is said. */
    user?: string | null;
};

/** A directory that is to be made. */
export type NewDirectory = {
    authority?: Authority | null;
    /** Permission bits in octal. */
    mode?: string | null;
    /** Here or in the query. */
    path?: string | null;
    user?: string | null;
};

export type NewKey = {
    /** From when on it is not accepted. */
    expiresAt?: string | null;
    name: string;
    /** Whose it is to be: the caller's org if nothing is said, another for an admin. */
    orgID?: string | null;
    /** `sandbox:*` if nothing is said; no more than the maker's own. */
    scope?: Scope | null;
};

/** An org that is to be made. */
export type NewOrg = {
    /** At once; `null` is as many as the machine holds. */
    maxSandboxes?: number | null;
    /** The longest lifetime in seconds; `null` is no end. */
    maxTimeout?: number | null;
    name: string;
};

/** What a sandbox is to be: everything may be left out. */
export type NewSandbox = {
    /** Another name for it, unique in the org. */
    alias?: string | null;
    /** What it may reach: IPv4 addresses or blocks, with `:port` perhaps. */
    allow?: string[];
    /** A use of it while it is paused lets it go on. */
    autoResume?: boolean | null;
    /** At most the ceiling of the server: `--max-cpus`, 4 by default. */
    cpuCount?: number | null;
    /** What it may not reach. */
    deny?: string[];
    /** In mebibytes, at most the ceiling of the server: `--max-disk`, 51200 by default. */
    diskMB?: number | null;
    /** `fsync` inside waits for the disk; see "What survives a power cut". */
    durable?: boolean;
    /** Variables of every command; never told again. */
    envs?: Record<string, string>;
    /** In seconds; 0 is for ever. */
    idleTimeout?: number | null;
    /** In mebibytes, at most the ceiling of the server: `--max-memory`, 8192 by default. */
    memoryMB?: number | null;
    /** Words of the caller's own: at most 64 entries and 16 KiB. */
    metadata?: Record<string, string>;
    network?: Network | null;
    /** `true` is the network `internet`. */
    networkEnabled?: boolean | null;
    onIdle?: ExpiryAction | null;
    onTimeout?: ExpiryAction | null;
    /** Processes and threads. */
    pids?: number | null;
    /** Its starting files. */
    template?: string | null;
    /** The same as `template`. */
    templateID?: string | null;
    /** In seconds; 0 is without end, as far as the org allows. */
    timeout?: number | null;
};

/** The file and the lifetime of a signed URL. */
export type NewSignedUrl = {
    authority?: Authority;
    /** In seconds. */
    expiresIn?: number | null;
    path: string;
    user?: string | null;
};

/** A terminal as it is asked for. */
export type NewTerminal = {
    /** The program's arguments. */
    args?: string[];
    /** 1 to 500; what is beyond is taken for that. */
    cols?: number | null;
    cwd?: string | null;
    envs?: Record<string, string>;
    /** 1 to 500; what is beyond is taken for that. */
    rows?: number | null;
    /** The program: a shell by default. */
    shell?: string | null;
    /** A name to find it by: `tag:NAME` stands for its id. */
    tag?: string | null;
    user?: string | null;
};

/** There is nothing to say about one. */
export type NewTicket = Record<string, never>;

/** An org. */
export type Org = {
    createdAt: Time;
    /** At once; `null` is as many as the machine holds. */
    maxSandboxes?: number | null;
    /** The longest lifetime in seconds; `null` is no end. */
    maxTimeout?: number | null;
    name: string;
    orgID: OrgId;
};

/** What of an org changes: what is left out stays. */
export type OrgChange = {
    /** At once; `null` is as many as the machine holds. */
    maxSandboxes?: number | null;
    /** The longest lifetime in seconds; `null` is no end. */
    maxTimeout?: number | null;
    name?: string | null;
};

/** an org id */
export type OrgId = string;

/** Another owner for what is there. */
export type OwnerChange = {
    authority?: Authority | null;
    /** Name or number; as it was if nothing is said. */
    group?: string;
    /** Name or number; as it was if nothing is said. */
    owner?: string;
    path: string;
    user?: string | null;
};

/** Sandboxes that are prepared in advance. */
export type PoolStatus = {
    /** Half-made ones. */
    embryos: number;
    /** Whole sandboxes. */
    warm: number;
};

/** Something that listens in a sandbox. */
export type Port = {
    address: string;
    port: number;
};

export type Readiness = {
    /** What is missing. */
    error?: string | null;
    journals?: JournalStatus | null;
    pool: PoolStatus;
    /** `ready` or `not_ready`. */
    status: string;
};

/** a request id */
export type RequestId = string;

export type Resume = {
    /** In seconds from now; what was left if nothing is said. */
    timeout?: number | null;
};

/** What a sandbox used at a moment. The names are E2B's where it has one. */
export type Sample = {
    cpuCount: number;
    /** Since it was started. */
    cpuSeconds: number;
    /** Since the sample before: 100 is all of its processors. */
    cpuUsedPct: number;
    /** The most that it can have, in bytes. */
    diskTotal: number;
    /** In bytes, when it was last measured. */
    diskUsed?: number | null;
    /** Contents of files that are kept as long as there is room, in bytes. */
    memCache: number;
    /** The most that it can have, in bytes. */
    memTotal: number;
    /** In bytes, without `memCache`. */
    memUsed: number;
    /** Processes and threads. */
    pids: number;
    timestamp: Time;
    /** In seconds since 1970. */
    timestampUnix: number;
};

/** A sandbox. */
export type Sandbox = {
    /** Another name for it, in paths too. */
    alias?: string | null;
    /** A use of it while it is paused lets it go on. */
    autoResume: boolean;
    cpuCount: number;
    createdAt: Time;
    /** When its files are deleted, if it stays stopped. */
    deleteAt?: Time | null;
    deletedAt?: Time | null;
    /** In mebibytes. */
    diskMB: number;
    /** `fsync` inside waits for the disk. */
    durable: boolean;
    /** `null` is without end, or not while it does not run. */
    endAt?: Time | null;
    /** Why it could not be made. */
    error?: string | null;
    /** In seconds. */
    idleTimeout?: number | null;
    /** In mebibytes. */
    memoryMB: number;
    /** Words of the caller's own. */
    metadata: Record<string, string>;
    network: Network;
    onIdle: ExpiryAction;
    onTimeout: ExpiryAction;
    /** Processes and threads. */
    pids: number;
    reason?: StopReason | null;
    sandboxID: SandboxId;
    /** This life of it in the history. */
    sessionID: SessionId;
    startedAt?: Time | null;
    state: SandboxState;
    /** The same, with `failed` spelled `error`. */
    status: string;
    stoppedAt?: Time | null;
    templateID: string;
    /** In seconds; 0 is without end. */
    timeout: number;
    /** Told by the request that makes it. */
    timings?: CreateTimings | null;
};

/** What of a sandbox changes: what is left out stays. */
export type SandboxChange = {
    /** `null` takes it away. */
    alias?: string | null;
    autoResume?: boolean | null;
    /** At most the ceiling of the server: `--max-cpus`, 4 by default. */
    cpuCount?: number | null;
    /** In mebibytes, at most the ceiling of the server: `--max-disk`, 51200 by default. */
    diskMB?: number | null;
    /** In seconds; 0 is for ever. */
    idleTimeout?: number | null;
    /** In mebibytes, at most the ceiling of the server: `--max-memory`, 8192 by default. */
    memoryMB?: number | null;
    /** Replaces all that there is. */
    metadata?: Record<string, string> | null;
    onIdle?: ExpiryAction | null;
    onTimeout?: ExpiryAction | null;
    pids?: number | null;
};

/** a sandbox id */
export type SandboxId = string;

/** The network of a sandbox and its rules, in the form that sets them. */
export type SandboxNetwork = {
    /** Addresses or blocks that the sandbox may reach, each with an optional `:port`. */
    allow: string[];
    /** What happens to addresses that no rule names. */
    default: NetworkDefault;
    /** Addresses or blocks that the sandbox may not reach, except those in `allow`. */
    deny: string[];
    network: Network;
};

/** Where a sandbox is in its life. */
export type SandboxState = "creating" | "running" | "paused" | "stopping" | "stopped" | "failed";

/** What a key is good for. */
export type Scope = "admin" | "sandbox:*" | "sandbox:read";

/** A session: a sandbox, and how much there is of its history. */
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
    /** Inside the sandbox. */
    pid: number;
};

/** How much of the input the command's pipe has taken. */
export type StdinOffset = {
    /** The bytes of all input so far: the next `offset`. */
    taken: number;
};

/** Why a sandbox stopped without a request to stop. */
export type StopReason = "host_restart" | "exited" | "oom" | "keeper_lost" | "timeout" | "idle";

/** A template. */
export type Template = {
    createdAt: Time;
    /** Sandboxes start from it if nothing is said. */
    default: boolean;
    /** Files, directories and links. */
    files: number;
    /** The same as `templateID`. */
    name: string;
    /** Of its files, in bytes. */
    size: number;
    /** What it was made from. */
    source: string;
    /** Programs may become root. */
    sudo: boolean;
    templateID: string;
    /** Whom commands run as. */
    user: string;
};

/** A terminal. */
export type Terminal = {
    cols: number;
    /** Inside the sandbox. */
    pid: number;
    ptyID: string;
    rows: number;
    sandboxID: SandboxId;
    /** The same as `ptyID`. */
    sessionID: string;
};

/** A terminal's size. */
export type TerminalSize = {
    /** 1 to 500; what is beyond is taken for that. */
    cols: number;
    /** 1 to 500; what is beyond is taken for that. */
    rows: number;
};

/** A ticket. */
export type Ticket = {
    expiresAt: Time;
    /** The secret: told once. */
    ticket: string;
};

/** A time: RFC 3339 with microseconds. */
export type Time = string;

export type Timeout = {
    /** In seconds from now; 0 is without end, as far as the org allows. */
    timeout: number;
};

/** From one place to another. */
export type Transfer = {
    authority?: Authority | null;
    from: string;
    /** What is there may go. */
    replace?: boolean;
    to: string;
    user?: string | null;
};

/** The result of unpacking an archive. */
export type UnpackSummary = {
    /** Of their contents. */
    bytes: number;
    /** Entries that are there now. */
    entries: number;
    /** Entries that were left out. */
    skipped: number;
    /** The first of them. */
    skippedEntries: SkippedEntry[];
};
