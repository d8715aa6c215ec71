/** Files of a sandbox. Paths are the sandbox's; relative ones, and `~`, start at the user's home. */

import { type Asked, type CallOptions, type Client, type Query, call } from "./client.js";
import { AtollError, ConnectionError } from "./error.js";
import { download } from "./download.js";
import type { Authority, FileInfo, FoundFiles, SignedUrl } from "./generated/api.js";
import { platform } from "./platform.js";
import { collect, streamOf } from "./streams.js";
import { Watch } from "./watch.js";

/** What every call about files takes. */
export interface FileOptions extends CallOptions {
    /** As whom; the template's user if nothing is said. */
    user?: string;
    /** With `root`, with the rights of the sandbox's root; what is made belongs to the user. */
    authority?: Authority;
}

/** How far a transfer is. */
export interface Progress {
    /** Bytes so far. */
    bytes: number;
    /** Of so many, where that is known. */
    total: number | undefined;
}

/** What a long transfer takes. */
export interface TransferOptions extends FileOptions {
    /** Is told how far it is. */
    onProgress?: (progress: Progress) => void;
}

/** How a directory is sent or fetched. */
export type DirectoryOptions = TransferOptions;

/** What became of a directory. */
export interface Transferred {
    /** Files, directories and links that are there now. */
    entries: number;
    /** Of their contents. */
    bytes: number;
    /** What was left out, and why. */
    skipped: { name: string; why: string }[];
}

/** What can be written. */
export type Contents = string | Uint8Array | ArrayBuffer | Blob | ReadableStream<Uint8Array>;

/** How fast a line is at least, in bytes a second. */
const SLOWEST = 1 << 20;
/** How long a stream may take to be written, in seconds. */
const HOUR = 3600;
/** How often a renaming whose answer got lost is looked after. */
const TRIES = 10;
/** How much is sent between two calls of `onProgress`. */
const PART = 64 << 10;

/** The files of a sandbox. */
export class Files {
    readonly #client: Client;
    readonly #path: string;

    /** @internal */
    constructor(client: Client, sandbox: string) {
        this.#client = client;
        this.#path = `/sandboxes/${sandbox}/files`;
    }

    /** A file's contents: as text, or as `bytes`, a `blob` or a `stream`. */
    read(path: string, options?: TransferOptions & { format?: "text" }): Promise<string>;
    read(path: string, options: TransferOptions & { format: "bytes" }): Promise<Uint8Array>;
    read(path: string, options: TransferOptions & { format: "blob" }): Promise<Blob>;
    read(path: string, options: TransferOptions & { format: "stream" }): Promise<ReadableStream<Uint8Array>>;
    async read(
        path: string,
        options: TransferOptions & { format?: "text" | "bytes" | "blob" | "stream" } = {},
    ): Promise<string | Uint8Array | Blob | ReadableStream<Uint8Array>> {
        const chunks = download(this.#client, this.#path, about(path, options), options);
        // A file that is not there is told of at once.
        const first = await chunks.next();
        if (options.format === "stream") {
            return streamOf(chunks, first);
        }
        const bytes = await collect(chunks, first);
        switch (options.format) {
            case "bytes":
                return bytes;
            case "blob":
                return new Blob([bytes]);
            default:
                return new TextDecoder().decode(bytes);
        }
    }

    /** Writes a file, and the directories above it that are missing. It is replaced at once, or not at all; `inPlace` writes into the one that is there. */
    async write(path: string, data: Contents, options: TransferOptions & { mode?: string; inPlace?: boolean } = {}): Promise<FileInfo> {
        const { mode, inPlace, onProgress } = options;
        const asked: Asked = { ...call(options), query: { ...about(path, options), mode, inPlace } };
        if (data instanceof ReadableStream) {
            // It can be read once.
            const requestTimeout = options.requestTimeout ?? HOUR;
            return await this.#client.json("PUT", this.#path, { ...asked, requestTimeout, body: () => data, repeat: "never" });
        }
        const blob = new Blob([data as BlobPart]);
        // A large file takes its time.
        asked.requestTimeout ??= this.#client.requestTimeout + blob.size / SLOWEST;
        const watched = onProgress !== undefined && platform.streamsBodies;
        const body = () => (watched ? streamOf(slices(blob, onProgress)) : blob);
        const written = await this.#client.json<FileInfo>("PUT", this.#path, { ...asked, body, repeat: "always" });
        if (!watched) {
            onProgress?.({ bytes: blob.size, total: blob.size });
        }
        return written;
    }

    /** What a directory has, `depth` levels deep; at most `limit` (10,000) entries. */
    async list(path: string, options: FileOptions & { depth?: number; limit?: number } = {}): Promise<FileInfo[]> {
        const { depth, limit } = options;
        return await this.#get("list", { ...about(path, options), depth, limit }, options);
    }

    /** What a path leads to; links are not followed. */
    async stat(path: string, options: FileOptions = {}): Promise<FileInfo> {
        return await this.#get("stat", about(path, options), options);
    }

    /** Whether a path leads to something. */
    async exists(path: string, options: FileOptions = {}): Promise<boolean> {
        try {
            await this.stat(path, options);
            return true;
        } catch (error) {
            if (error instanceof AtollError && error.code === "FILE_NOT_FOUND") {
                return false;
            }
            throw error;
        }
    }

    /** Makes a directory and those above it; one that is there is fine. */
    async makeDir(path: string, options: FileOptions & { mode?: string } = {}): Promise<void> {
        await this.#post("mkdir", { path, mode: options.mode }, options, { repeat: "always" });
    }

    /** Removes a file, or a directory; one that is not empty only if `recursive`. */
    async remove(path: string, options: FileOptions & { recursive?: boolean } = {}): Promise<void> {
        const query = { ...about(path, options), recursive: options.recursive };
        await this.#client.json("DELETE", this.#path, { ...call(options), query, repeat: "always", done: "FILE_NOT_FOUND" });
    }

    /** Renames; what is there stays, unless `replace` is said. */
    async rename(from: string, to: string, options: FileOptions & { replace?: boolean } = {}): Promise<void> {
        const body = { from, to, replace: options.replace };
        for (let tries = 1; ; tries++) {
            try {
                return await this.#post("rename", body, options, {});
            } catch (error) {
                if (!(error instanceof ConnectionError && error.sent) || tries === TRIES) {
                    throw error;
                }
                // The answer got lost: it was done if the one is gone and the other there.
                if (!(await this.exists(from, options)) && (await this.exists(to, options))) {
                    return;
                }
            }
        }
    }

    /** Copies a file or a directory. */
    async copy(from: string, to: string, options: FileOptions & { replace?: boolean } = {}): Promise<void> {
        await this.#post("copy", { from, to, replace: options.replace }, options, {});
    }

    /** Changes the permission bits, such as `755`. */
    async chmod(path: string, mode: string, options: FileOptions = {}): Promise<void> {
        await this.#post("chmod", { path, mode }, options, { repeat: "always" });
    }

    /** Changes the owner, the group or both, by name or number. */
    async chown(path: string, to: { owner?: string; group?: string }, options: FileOptions = {}): Promise<void> {
        await this.#post("chown", { path, ...to }, options, { repeat: "always" });
    }

    /** Looks below a directory for names (`query`), for text in files (`content`), or both. */
    async search(path: string, options: FileOptions & { query?: string; content?: string; limit?: number }): Promise<FoundFiles> {
        const { query, content, limit } = options;
        return await this.#get("search", { ...about(path, options), query, content, limit }, options);
    }

    /** Watches a directory. When this is done the watch has begun; iterate over it. */
    async watch(path: string, options: FileOptions & { recursive?: boolean } = {}): Promise<Watch> {
        const query = { ...about(path, options), recursive: options.recursive };
        return await Watch.begin(this.#client, `${this.#path}/watch`, query, options);
    }

    /** A link by which everybody can read a file for `expiresIn` (3600) seconds. */
    async downloadUrl(path: string, options: FileOptions & { expiresIn?: number } = {}): Promise<SignedUrl> {
        return await this.#link("download-url", path, options);
    }

    /** A link by which everybody can write a file for `expiresIn` (3600) seconds. */
    async uploadUrl(path: string, options: FileOptions & { expiresIn?: number } = {}): Promise<SignedUrl> {
        return await this.#link("upload-url", path, options);
    }

    /** Sends a local directory into one of the sandbox, with modes and links. Node only. */
    async uploadDir(local: string, path: string, options: DirectoryOptions = {}): Promise<Transferred> {
        return await platform.uploadDir(this.#client, this.#archive(path, options), local, options);
    }

    /** Fetches a directory of the sandbox into a local one, with modes and links; links that lead out are left out. Node only. */
    async downloadDir(path: string, local: string, options: DirectoryOptions = {}): Promise<Transferred> {
        return await platform.downloadDir(this.#client, this.#archive(path, options), local, options);
    }

    #archive(path: string, options: FileOptions): string {
        const said = Object.entries(about(path, options)).filter((pair): pair is [string, string] => pair[1] !== undefined);
        return `${this.#path}/archive?${new URLSearchParams(said)}`;
    }

    async #get<T>(route: string, query: Query, options: FileOptions): Promise<T> {
        return await this.#client.json("GET", `${this.#path}/${route}`, { ...call(options), query });
    }

    async #post(route: string, body: object, options: FileOptions, how: Asked): Promise<void> {
        const { user, authority } = options;
        const json = { ...body, user, authority };
        await this.#client.json("POST", `${this.#path}/${route}`, { ...call(options), json, ...how });
    }

    async #link(route: string, path: string, options: FileOptions & { expiresIn?: number }): Promise<SignedUrl> {
        const { user, authority, expiresIn } = options;
        const json = { path, user, authority, expiresIn };
        return await this.#client.json("POST", `${this.#path}/${route}`, { ...call(options), json, repeat: "always" });
    }
}

/** Which file, and as whom. */
function about(path: string, options: FileOptions) {
    return { path, user: options.user, authority: options.authority };
}

async function* slices(blob: Blob, told: (progress: Progress) => void): AsyncGenerator<Uint8Array> {
    for (let at = 0; at < blob.size; at += PART) {
        const bytes = new Uint8Array(await blob.slice(at, at + PART).arrayBuffer());
        yield bytes;
        told({ bytes: at + bytes.length, total: blob.size });
    }
}
