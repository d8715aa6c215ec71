/** Directory watches. */

import type { CallOptions, Client, Query } from "./client.js";
import { Deadline } from "./deadline.js";
import type { ServerEvent } from "./sse.js";

/** A change in a watched directory. Paths are relative to the directory. */
export type WatchEvent =
    | { type: "create"; path: string; isDir: boolean }
    | { type: "write" | "remove" | "chmod"; path: string }
    | { type: "rename"; from: string; path: string }
    /** Events are missing, for example after a lost connection: read the directory again. */
    | { type: "overflow" }
    /** There are too many directories to watch all of them. */
    | { type: "limit" };

/** Yields the changes in a directory. It ends when the directory is removed or the sandbox stops. */
export class Watch implements AsyncIterable<WatchEvent>, AsyncDisposable {
    readonly #stop = new AbortController();
    readonly #events: AsyncGenerator<ServerEvent>;
    #first: Promise<IteratorResult<ServerEvent>> | undefined;

    private constructor(client: Client, path: string, query: Query, opened: () => void) {
        // Events during a lost connection are missing.
        const resumed = () => ({ name: "overflow", id: undefined, data: "{}" });
        this.#events = client.events(path, { query, signal: this.#stop.signal, opened, resumed });
    }

    /** @internal */
    static async begin(client: Client, path: string, query: Query, options: CallOptions): Promise<Watch> {
        const seconds = options.requestTimeout ?? client.requestTimeout;
        const deadline = new Deadline(`the beginning of a watch of ${query.path}`, seconds, options.signal);
        let opened = () => {};
        const began = new Promise<void>((done) => {
            opened = done;
        });
        const watch = new Watch(client, path, query, () => opened());
        try {
            watch.#first = watch.#events.next();
            await deadline.race(Promise.race([began, watch.#first]));
            return watch;
        } catch (error) {
            watch.close();
            throw error;
        } finally {
            deadline.end();
        }
    }

    async *[Symbol.asyncIterator](): AsyncGenerator<WatchEvent> {
        try {
            for (;;) {
                const { value: event, done } = await (this.#first ?? this.#events.next());
                this.#first = undefined;
                if (done || event.name === "end") {
                    return;
                }
                yield { type: event.name, ...JSON.parse(event.data) } as WatchEvent;
            }
        } catch (error) {
            if (!this.#stop.signal.aborted) {
                throw error;
            }
        } finally {
            this.close();
        }
    }

    /** Ends the watch. */
    close(): void {
        this.#stop.abort();
        this.#first?.catch(() => {});
        this.#events.return(undefined).catch(() => {});
    }

    async [Symbol.asyncDispose](): Promise<void> {
        this.close();
    }
}
