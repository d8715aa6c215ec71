/** A proxy that breaks each connection after a pseudorandom number of bytes. */

import { type AddressInfo, type Server, type Socket, connect, createServer } from "node:net";

export class Cutter implements Disposable {
    readonly #server: Server;
    readonly #sockets = new Set<Socket>();
    cuts = 0;
    /** Number of connections so far. */
    connections = 0;
    /** Drops the response to the next request with these words in its head. */
    lose: string | undefined;

    private constructor(port: number, seed: number | undefined) {
        let random = seed ?? 0;
        const next = () => {
            random = (Math.imul(random, 1_664_525) + 1_013_904_223) >>> 0;
            return random / 2 ** 32;
        };
        this.#server = createServer((client) => {
            this.connections++;
            // From a part of a head to some hundred kilobytes, each size as likely as its double.
            const doublings = 8 + Math.floor(next() * 12);
            let left = seed === undefined ? Number.POSITIVE_INFINITY : 2 ** doublings * (1 + next());
            let lost = false;
            const server = connect(port, "127.0.0.1");
            const both = [client, server] as const;
            const end = () => both.forEach((socket) => socket.destroy());
            for (const [from, to] of [both, [server, client]] as const) {
                this.#sockets.add(from);
                from.setNoDelay();
                from.on("error", end).on("close", end);
                from.on("end", () => to.end());
                from.on("data", (bytes) => {
                    if (lost) {
                        return end();
                    }
                    if (this.lose !== undefined && from === client && bytes.includes(this.lose)) {
                        [this.lose, lost] = [undefined, true];
                    }
                    to.write(bytes.subarray(0, Math.max(0, Math.floor(left))));
                    left -= bytes.length;
                    if (left < 0) {
                        this.cuts++;
                        // What was let through arrives.
                        both.forEach((socket) => socket.removeAllListeners("data").destroySoon());
                    }
                });
            }
        });
    }

    /** In front of a server; without a seed it cuts nothing and only counts. */
    static async start(port: number, seed?: number): Promise<Cutter> {
        const cutter = new Cutter(port, seed);
        await new Promise<void>((done) => cutter.#server.listen(0, "127.0.0.1", done));
        return cutter;
    }

    get url(): string {
        return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
    }

    [Symbol.dispose](): void {
        this.close();
    }

    close(): void {
        this.#server.close();
        this.#sockets.forEach((socket) => socket.destroy());
    }
}
