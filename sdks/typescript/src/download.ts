/** File downloads that resume after a broken connection. */

import type { Client, Query } from "./client.js";
import { RetryPolicy, IdleWatchdog, idleTimeout } from "./deadline.js";
import { ConnectionError } from "./error.js";
import { failure } from "./failure.js";
import type { TransferOptions } from "./files.js";
import type { FileInfo } from "./generated/api.js";
import { piecesOf } from "./streams.js";

/** A smaller file, in bytes, is read at once, and read again if the connection breaks. */
const LARGE = 256 << 10;

/** Downloads a file. A large file is resumed after a broken connection, unless it was changed. */
export async function* download(client: Client, path: string, query: Query, options: TransferOptions): AsyncGenerator<Uint8Array> {
    const { requestTimeout, onProgress } = options;
    let got = 0;
    let first: FileInfo | undefined;
    let total: number | undefined;
    const retry = new RetryPolicy(client.reconnect * 1000);
    do {
        const watchdog = new IdleWatchdog(idleTimeout.milliseconds, options.signal);
        const call = { requestTimeout, signal: watchdog.signal, query };
        try {
            const headers: Record<string, string> = got > 0 ? { range: `bytes=${got}-` } : {};
            const opened = await client.request("GET", path, { ...call, headers }, async (response) => {
                const size = Number(response.headers.get("x-file-size") ?? 0);
                // The size of the file itself: the path may be a symbolic link.
                total ??= size;
                return size > LARGE || got > 0 ? response : await response.arrayBuffer();
            });
            if (opened instanceof ArrayBuffer) {
                onProgress?.({ bytes: opened.byteLength, total: opened.byteLength });
                yield new Uint8Array(opened);
                return;
            }
            const now = await client.json<FileInfo>("GET", `${path}/stat`, call);
            first ??= now;
            if (now.modifiedAt !== first.modifiedAt || now.size !== first.size) {
                const facts = { code: "CONFLICT", category: "conflict", remedy: "read it again" } as const;
                throw failure(`${query.path} was changed while it was read`, facts);
            }
            watchdog.reset();
            for await (const piece of piecesOf(opened)) {
                watchdog.reset();
                retry.progress();
                got += piece.length;
                onProgress?.({ bytes: got, total });
                yield piece;
            }
            return;
        } catch (thrown) {
            options.signal?.throwIfAborted();
            const error = watchdog.expired ? undefined : client.broken(thrown);
            if (error && !(error instanceof ConnectionError && error.sent)) {
                throw error;
            }
        } finally {
            watchdog.end();
        }
    } while (await retry.pause());
    options.signal?.throwIfAborted();
    throw new ConnectionError(`GET ${path}: the connection broke several times`, {
        sent: true,
        remedy: "check the network and proxies between this program and the server",
    });
}
