/**
 * Upload and download of directories as tar archives. Archives of a sandbox are not trusted: nothing is written outside the local
 * directory, also not through existing links, and links that point outside are skipped.
 */

import { createReadStream } from "node:fs";
import { chmod, copyFile, link, lstat, mkdir, open, readdir, readlink, rename, rm, symlink } from "node:fs/promises";
import { dirname, join, normalize, sep } from "node:path";

import type { Client } from "../client.js";
import { RetryPolicy, IdleWatchdog, idleTimeout } from "../deadline.js";
import { ConnectionError, TimeoutError } from "../error.js";
import { invalid } from "../failure.js";
import type { DirectoryOptions, Transferred } from "../files.js";
import type { UnpackSummary } from "../generated/api.js";
import { randomName } from "../random.js";
import { piecesOf, streamOf } from "../streams.js";
import { END, type TarEntry, entries, header, padding } from "./tar.js";

/** Maximum number of attempts for a download. */
const TRIES = 10;
/** Idle timeout of an upload, in milliseconds. */
const STALL = 120_000;

export async function uploadDir(client: Client, path: string, from: string, options: DirectoryOptions): Promise<Transferred> {
    const about = await lstat(from).catch((error: Error) => {
        throw invalid("local", `${from} cannot be read: ${error.message}`, "name a local directory");
    });
    if (!about.isDirectory()) {
        throw invalid("local", `${from} is not a directory`, "send a file with files.write");
    }
    const left: Transferred["skipped"] = [];
    const watchdog = new IdleWatchdog(STALL, options.signal);
    watchdog.reset();
    // A local read error must not count as a broken connection.
    const unreadable = new AbortController();
    async function* packed(): AsyncGenerator<Uint8Array> {
        try {
            yield* pack(from, left, options, () => watchdog.reset());
        } catch (error) {
            unreadable.abort(invalid("local", `${from} cannot be read: ${(error as Error).message}`, "check its permissions"));
        }
    }
    try {
        const answer = await client.json<UnpackSummary>("PUT", path, {
            body: () => {
                left.length = 0;
                return streamOf(packed());
            },
            headers: { "content-type": "application/x-tar" },
            repeat: "always",
            requestTimeout: options.requestTimeout ?? 0,
            signal: AbortSignal.any([watchdog.signal, unreadable.signal]),
        });
        return { entries: answer.entries, bytes: answer.bytes, skipped: [...left, ...answer.skippedEntries] };
    } catch (error) {
        throw watchdog.expired ? new TimeoutError(`PUT ${path}: the server read nothing for ${STALL / 1000} s`, "check whether the server is overloaded") : error;
    } finally {
        watchdog.end();
    }
}

/** Yields the archive of a directory while reading it. */
async function* pack(from: string, left: Transferred["skipped"], options: DirectoryOptions, went: () => void): AsyncGenerator<Uint8Array> {
    let bytes = 0;
    const below = async function* (directory: string): AsyncGenerator<Uint8Array> {
        for (const name of (await readdir(join(from, directory))).sort()) {
            const path = directory === "" ? name : `${directory}/${name}`;
            const place = join(from, path);
            const about = await lstat(place);
            went();
            const entry: TarEntry = { name: path, type: "file", mode: about.mode, size: 0, mtime: about.mtimeMs / 1000, target: "" };
            if (about.isDirectory()) {
                yield header({ ...entry, name: `${path}/`, type: "directory" });
                yield* below(path);
            } else if (about.isSymbolicLink()) {
                yield header({ ...entry, type: "link", target: await readlink(place) });
            } else if (about.isFile()) {
                yield header({ ...entry, size: about.size });
                for await (const part of sized(place, about.size)) {
                    bytes += part.length;
                    yield part;
                    went();
                    options.onProgress?.({ bytes, total: undefined });
                }
                yield padding(about.size);
            } else {
                left.push({ name: path, why: "it is not a file, directory or link" });
            }
        }
    };
    yield* below("");
    yield END;
}

/** Yields exactly `size` bytes of a file, which may grow or shrink in the meantime. */
async function* sized(place: string, size: number): AsyncGenerator<Buffer> {
    let left = size;
    if (left > 0) {
        for await (const part of createReadStream(place, { end: size - 1 }) as AsyncIterable<Buffer>) {
            left -= part.length;
            yield part;
        }
    }
    if (left > 0) {
        yield Buffer.alloc(left);
    }
}

export async function downloadDir(client: Client, path: string, to: string, options: DirectoryOptions): Promise<Transferred> {
    const retry = new RetryPolicy(client.reconnect * 1000);
    for (let tries = 1; ; tries++) {
        const watchdog = new IdleWatchdog(idleTimeout.milliseconds, options.signal);
        try {
            const call = { requestTimeout: options.requestTimeout, signal: watchdog.signal };
            const response = await client.request("GET", path, call, async (it) => it);
            watchdog.reset();
            return await unpack(piecesOf(response), to, options, () => watchdog.reset());
        } catch (thrown) {
            options.signal?.throwIfAborted();
            const error = watchdog.expired ? new ConnectionError(`GET ${path}: the server sends nothing any more`, { sent: true }) : client.broken(thrown);
            if (!(error instanceof ConnectionError) || tries === TRIES) {
                throw error;
            }
        } finally {
            watchdog.end();
        }
        await retry.pause();
    }
}

async function unpack(pieces: AsyncIterable<Uint8Array>, to: string, options: DirectoryOptions, heard: () => void): Promise<Transferred> {
    const done: Transferred = { entries: 0, bytes: 0, skipped: [] };
    // Modes of directories are set at the end, as a directory may become read-only.
    const modes: [string, number][] = [];
    await mkdir(to, { recursive: true });
    for await (const { entry, contents } of entries(pieces)) {
        heard();
        const name = normalize(entry.name).replace(/\/+$/, "");
        const place = join(to, name);
        const why = await unfit(to, name, entry);
        if (why) {
            done.skipped.push({ name: entry.name, why });
            continue;
        }
        if (entry.type === "directory") {
            await mkdir(place, { recursive: true });
            modes.push([place, entry.mode & 0o777]);
        } else {
            await mkdir(dirname(place), { recursive: true });
            await put(to, place, entry, contents, (count) => {
                heard();
                done.bytes += count;
                options.onProgress?.({ bytes: done.bytes, total: undefined });
            });
        }
        done.entries++;
    }
    for (const [place, mode] of modes.reverse()) {
        await chmod(place, mode);
    }
    return done;
}

/** Replaces a file or a link atomically. */
async function put(to: string, place: string, entry: TarEntry, contents: AsyncIterable<Buffer>, wrote: (count: number) => void): Promise<void> {
    const made = join(dirname(place), `.atoll-${randomName()}`);
    try {
        if (entry.type === "link") {
            await symlink(entry.target, made);
        } else if (entry.type === "hard link") {
            const source = join(to, normalize(entry.target));
            // Not every file system supports hard links.
            await link(source, made).catch(async () => await copyFile(source, made));
        } else {
            const file = await open(made, "wx", 0o600);
            try {
                for await (const part of contents) {
                    await file.writeFile(part);
                    wrote(part.length);
                }
                await file.chmod(entry.mode & 0o777);
                await file.utimes(entry.mtime, entry.mtime);
            } finally {
                await file.close();
            }
        }
        await rename(made, place);
    } finally {
        // A rename between two hard links of one file removes neither.
        await rm(made, { force: true });
    }
}

/** Why an entry is skipped; `undefined` if it is not. */
async function unfit(to: string, name: string, entry: TarEntry): Promise<string | undefined> {
    if (outside(name) || entry.name.includes("\0")) {
        return "it is not in the directory";
    }
    if (entry.type === "other") {
        return "it is not a file, directory or link";
    }
    if (entry.type === "link" && leadsOut(name, entry.target)) {
        return "it leads out of the directory";
    }
    if (entry.type === "hard link") {
        const source = normalize(entry.target);
        const about = outside(source) || entry.target.includes("\0") || (await inTheWay(to, source, false)) ? undefined : await there(to, source);
        if (!about?.isFile()) {
            return "what it is another name of is not in the directory";
        }
    }
    if (await inTheWay(to, name, entry.type === "directory")) {
        return "something else is in the way";
    }
    return entry.type !== "directory" && (await there(to, name))?.isDirectory() ? "a directory is in the way" : undefined;
}

function outside(path: string): boolean {
    return path.startsWith(sep) || path === ".." || path.startsWith(`..${sep}`);
}

/** Whether a link may point outside. `..` is allowed only at the beginning: any other could point outside through another link. */
function leadsOut(name: string, target: string): boolean {
    const parts = target.split("/").filter((part) => part !== "" && part !== ".");
    const up = parts.findIndex((part) => part !== "..");
    const depth = name.split(sep).length - 1;
    const [ups, rest] = up < 0 ? [parts.length, []] : [up, parts.slice(up)];
    return target === "" || target.includes("\0") || target.startsWith("/") || ups > depth || rest.includes("..");
}

async function there(to: string, name: string) {
    return await lstat(join(to, name)).catch(() => undefined);
}

/** Whether a parent of the path is not a directory; with `itself`, also the path. */
async function inTheWay(to: string, name: string, itself: boolean): Promise<boolean> {
    const parts = name.split(sep);
    for (let count = 1; count < parts.length + (itself ? 1 : 0); count++) {
        const above = await there(to, join(...parts.slice(0, count)));
        if (above && !above.isDirectory()) {
            return true;
        }
    }
    return false;
}
