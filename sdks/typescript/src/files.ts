/** Files of a sandbox. Relative paths and `~` start at the user's home directory in the sandbox. */

import { type RequestOptions, type CallOptions, type Client, type Query, call } from "./client.js";
import { AtollError, ConnectionError } from "./error.js";
import { download } from "./download.js";
import type { Authority, FileInfo, FoundFiles, SignedUrl } from "./generated/api.js";
import { platform } from "./platform.js";
import { collect, streamOf } from "./streams.js";
import { Watch } from "./watch.js";

/** Options of every file call. */
export interface FileOptions extends CallOptions {
    /** The user whose permissions apply. The default is the template's user. */
    user?: string;
    /** `root` uses the permissions of root in the sandbox; new files still belong to the user. */
    authority?: Authority;
}

/** Progress of a transfer. */
export interface Progress {
    /** Transferred bytes. */
    bytes: number;
    /** Total bytes, if known. */
    total: number | undefined;
}

/** Options of a transfer. */
export interface TransferOptions extends FileOptions {
    /** Called with the progress of the transfer. */
    onProgress?: (progress: Progress) => void;
}

/** Options of a directory transfer. */
export type DirectoryOptions = TransferOptions;

/** The result of a directory transfer. */
export interface Transferred {
    /** Number of transferred files, directories and links. */
    entries: number;
    /** Bytes of file contents. */
    bytes: number;
    /** Skipped entries, and why. */
    skipped: { name: string; why: string }[];
}

/** Data that `write` accepts. */
export type Contents = string | Uint8Array | ArrayBuffer | Blob | ReadableStream<Uint8Array>;

/** Assumed minimum bandwidth, in bytes per second. */
const SLOWEST = 1 << 20;
/** Default timeout for writing a stream, in seconds. */
const HOUR = 3600;
/** Maximum number of attempts for a rename whose response is lost. */
const TRIES = 10;
/** Bytes between two calls of `onProgress`. */
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

    /** Reads a file as text, `bytes`, a `blob` or a `stream`. */
    read(path: string, options?: TransferOptions & { format?: "text" }): Promise<string>;
    read(path: string, options: TransferOptions & { format: "bytes" }): Promise<Uint8Array>;
    read(path: string, options: TransferOptions & { format: "blob" }): Promise<Blob>;
    read(path: string, options: TransferOptions & { format: "stream" }): Promise<ReadableStream<Uint8Array>>;
    async read(
        path: string,
        options: TransferOptions & { format?: "text" | "bytes" | "blob" | "stream" } = {},
    ): Promise<string | Uint8Array | Blob | ReadableStream<Uint8Array>> {
        const chunks = download(this.#client, this.#path, about(path, options), options);
        // A missing file throws here, also for a stream.
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

    /** Writes a file and creates missing parent directories. An existing file is replaced atomically; `inPlace` overwrites its contents instead. */
    async write(path: string, data: Contents, options: TransferOptions & { mode?: string; inPlace?: boolean } = {}): Promise<FileInfo> {
        const { mode, inPlace, onProgress } = options;
        const request: RequestOptions = { ...call(options), query: { ...about(path, options), mode, inPlace } };
        if (data instanceof ReadableStream) {
            // A stream can be read only once.
            const requestTimeout = options.requestTimeout ?? HOUR;
            return await this.#client.json("PUT", this.#path, { ...request, requestTimeout, body: () => data, repeat: "never" });
        }
        const blob = new Blob([data as BlobPart]);
        // A larger file has a longer timeout.
        request.requestTimeout ??= this.#client.requestTimeout + blob.size / SLOWEST;
        const watched = onProgress !== undefined && platform.streamsBodies;
        const body = () => (watched ? streamOf(slices(blob, onProgress)) : blob);
        const written = await this.#client.json<FileInfo>("PUT", this.#path, { ...request, body, repeat: "always" });
        if (!watched) {
            onProgress?.({ bytes: blob.size, total: blob.size });
        }
        return written;
    }

    /** Lists a directory and its subdirectories up to `depth` levels; at most `limit` (10,000) entries. */
    async list(path: string, options: FileOptions & { depth?: number; limit?: number } = {}): Promise<FileInfo[]> {
        const { depth, limit } = options;
        return await this.#get("list", { ...about(path, options), depth, limit }, options);
    }

    /** Returns the metadata of a path. Symbolic links are not followed. */
    async stat(path: string, options: FileOptions = {}): Promise<FileInfo> {
        return await this.#get("stat", about(path, options), options);
    }

    /** Whether a path exists. */
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

    /** Creates a directory and its missing parents. An existing directory is no error. */
    async makeDir(path: string, options: FileOptions & { mode?: string } = {}): Promise<void> {
        await this.#post("mkdir", { path, mode: options.mode }, options, { repeat: "always" });
    }

    /** Removes a file or a directory. A directory that is not empty requires `recursive`. */
    async remove(path: string, options: FileOptions & { recursive?: boolean } = {}): Promise<void> {
        const query = { ...about(path, options), recursive: options.recursive };
        await this.#client.json("DELETE", this.#path, { ...call(options), query, repeat: "always", done: "FILE_NOT_FOUND" });
    }

    /** Renames or moves a file or a directory. An existing target is replaced only with `replace`. */
    async rename(from: string, to: string, options: FileOptions & { replace?: boolean } = {}): Promise<void> {
        const body = { from, to, replace: options.replace };
        for (let tries = 1; ; tries++) {
            try {
                return await this.#post("rename", body, options, {});
            } catch (error) {
                if (!(error instanceof ConnectionError && error.sent) || tries === TRIES) {
                    throw error;
                }
                // The response may be lost: the rename succeeded if the source is gone and the target exists.
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

    /** Searches a directory tree for file names (`query`), text in files (`content`), or both. */
    async search(path: string, options: FileOptions & { query?: string; content?: string; limit?: number }): Promise<FoundFiles> {
        const { query, content, limit } = options;
        return await this.#get("search", { ...about(path, options), query, content, limit }, options);
    }

    /** Watches a directory. The watch is active when the promise resolves; iterate over it for changes. */
    async watch(path: string, options: FileOptions & { recursive?: boolean } = {}): Promise<Watch> {
        const query = { ...about(path, options), recursive: options.recursive };
        return await Watch.begin(this.#client, `${this.#path}/watch`, query, options);
    }

    /** Returns a URL to read the file without an API key, valid for `expiresIn` (3600) seconds. */
    async downloadUrl(path: string, options: FileOptions & { expiresIn?: number } = {}): Promise<SignedUrl> {
        return await this.#link("download-url", path, options);
    }

    /** Returns a URL to write the file without an API key, valid for `expiresIn` (3600) seconds. */
    async uploadUrl(path: string, options: FileOptions & { expiresIn?: number } = {}): Promise<SignedUrl> {
        return await this.#link("upload-url", path, options);
    }

    /** Uploads the contents of a local directory. Modes and symbolic links are preserved. Node only. */
    async uploadDir(local: string, path: string, options: DirectoryOptions = {}): Promise<Transferred> {
        return await platform.uploadDir(this.#client, this.#archive(path, options), local, options);
    }

    /** Downloads the contents of a directory into a local one. Modes and links are preserved; links that point outside are skipped. Node only. */
    async downloadDir(path: string, local: string, options: DirectoryOptions = {}): Promise<Transferred> {
        return await platform.downloadDir(this.#client, this.#archive(path, options), local, options);
    }

    #archive(path: string, options: FileOptions): string {
        const parameters = Object.entries(about(path, options)).filter((pair): pair is [string, string] => pair[1] !== undefined);
        return `${this.#path}/archive?${new URLSearchParams(parameters)}`;
    }

    async #get<T>(route: string, query: Query, options: FileOptions): Promise<T> {
        return await this.#client.json("GET", `${this.#path}/${route}`, { ...call(options), query });
    }

    async #post(route: string, body: object, options: FileOptions, how: RequestOptions): Promise<void> {
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

/** The query parameters of a path. */
function about(path: string, options: FileOptions) {
    return { path, user: options.user, authority: options.authority };
}

async function* slices(blob: Blob, onProgress: (progress: Progress) => void): AsyncGenerator<Uint8Array> {
    for (let at = 0; at < blob.size; at += PART) {
        const bytes = new Uint8Array(await blob.slice(at, at + PART).arrayBuffer());
        yield bytes;
        onProgress({ bytes: at + bytes.length, total: blob.size });
    }
}
