/** The bytes of a file, over a line that may break. */

import type { Client, Query } from "./client.js";
import { Patience, Silence, silence } from "./deadline.js";
import { ConnectionError } from "./error.js";
import { failure } from "./failure.js";
import type { TransferOptions } from "./files.js";
import type { FileInfo } from "./generated/api.js";
import { piecesOf } from "./streams.js";

/** A smaller file is read whole, and read again if the connection breaks. */
const LARGE = 256 << 10;

/** A large file is gone on with where it broke off, as long as it is the same. */
export async function* download(client: Client, path: string, query: Query, options: TransferOptions): AsyncGenerator<Uint8Array> {
    const { requestTimeout, onProgress } = options;
    let got = 0;
    let first: FileInfo | undefined;
    let total: number | undefined;
    const patience = new Patience(client.reconnect * 1000);
    do {
        const quiet = new Silence(silence.most, options.signal);
        const call = { requestTimeout, signal: quiet.signal, query };
        try {
            const headers: Record<string, string> = got > 0 ? { range: `bytes=${got}-` } : {};
            const opened = await client.request("GET", path, { ...call, headers }, async (response) => {
                const size = Number(response.headers.get("x-file-size") ?? 0);
                // Of the file itself: a path may lead there by a link.
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
            quiet.heard();
            for await (const piece of piecesOf(opened)) {
                quiet.heard();
                patience.progress();
                got += piece.length;
                onProgress?.({ bytes: got, total });
                yield piece;
            }
            return;
        } catch (thrown) {
            options.signal?.throwIfAborted();
            const error = quiet.lasted ? undefined : client.broken(thrown);
            if (error && !(error instanceof ConnectionError && error.sent)) {
                throw error;
            }
        } finally {
            quiet.end();
        }
    } while (await patience.pause());
    options.signal?.throwIfAborted();
    throw new ConnectionError(`GET ${path}: the answer breaks off again and again`, {
        sent: true,
        remedy: "see what is between here and the server",
    });
}
