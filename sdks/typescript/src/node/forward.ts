/** Local port forwarding through WebSocket tunnels of the server. */

import { type AddressInfo, type Socket, createServer } from "node:net";

import type { Client } from "../client.js";
import { ConnectionError, UnsupportedError } from "../error.js";
import { invalid } from "../failure.js";
import type { Forward, ForwardOptions } from "../sandbox.js";
import { type Closed, openSocket } from "../socket.js";

/** Maximum unsent bytes to the server before reading from the local socket pauses. */
const MOST = 1 << 20;
/** Interval between two checks of the unsent bytes, in milliseconds. */
const LOOK = 5;
/** Maximum size of a message to the server, in bytes. */
const LARGEST = 1 << 20;
/** Maximum buffered bytes for a slow local socket if the WebSocket cannot be paused; more end the connection. */
const HELD = 64 << 20;

export async function forward(client: Client, sandbox: string, port: number, options: ForwardOptions): Promise<Forward> {
    if (!Number.isInteger(port) || port < 1 || port > 65535) {
        throw invalid("port", `${port} is not a port`, "give 1 to 65535");
    }
    const path = `/sandboxes/${sandbox}/ports/${port}/tunnel`;
    const connections = new Set<Socket>();
    const state: { lastError: Error | undefined } = { lastError: undefined };
    const fail = (local: Socket, error: unknown) => {
        // The local side ended the connection: no error to report.
        if (!local.destroyed) {
            state.lastError = error instanceof Error ? error : new Error(String(error));
            local.resetAndDestroy();
        }
    };
    const server = createServer({ allowHalfOpen: true, pauseOnConnect: true }, (local) => {
        connections.add(local);
        local.on("close", () => connections.delete(local));
        // The local side only sees the end of the connection; `lastError` has the reason.
        local.on("error", () => local.destroy());
        const failed = (error: unknown) => fail(local, error);
        join(client, path, local, failed).catch(failed);
    });
    const host = options.host ?? "127.0.0.1";
    await new Promise<void>((done, fail) => {
        server.once("error", fail);
        server.listen(options.localPort ?? 0, host, () => done());
    });
    const close = async () => {
        const closed = new Promise((done) => server.close(done));
        for (const connection of connections) {
            connection.destroy();
        }
        await closed;
    };
    const { port: here } = server.address() as AddressInfo;
    return Object.assign(state, { host, port: here, close, [Symbol.asyncDispose]: close });
}

/** A WebSocket that can be paused, such as that of `ws`. */
interface Pausable {
    pause?(): void;
    resume?(): void;
}

async function join(client: Client, path: string, local: Socket, failed: (error: unknown) => void): Promise<void> {
    let ended = false;
    const listeners = {
        message(data: ArrayBuffer) {
            const bytes = Buffer.from(data);
            if (bytes.length === 0) {
                // An empty message is the end of the sandbox's data.
                local.end();
            } else if (!local.write(bytes) && socket?.pause) {
                socket.pause();
                local.once("drain", () => socket?.resume?.());
            } else if (local.writableLength > HELD) {
                failed(new UnsupportedError("the local side does not read, and this WebSocket cannot wait for it", "npm install ws"));
            }
        },
        close({ code, reason }: Closed) {
            ended = true;
            // 1000: both sides have sent all data.
            if (code === 1000) {
                local.end();
            } else {
                failed(new ConnectionError(`${path}: ${reason || `the connection was closed with ${code}`}`, { sent: true }));
            }
        },
    };
    let socket: (WebSocket & Pausable) | undefined;
    const opened: WebSocket & Pausable = await openSocket(client, path, listeners);
    socket = opened;
    local.on("close", () => opened.close());
    local.on("data", (bytes) => {
        for (let at = 0; at < bytes.length; at += LARGEST) {
            opened.send(bytes.subarray(at, at + LARGEST));
        }
        if (opened.bufferedAmount > MOST) {
            local.pause();
            const look = setInterval(() => {
                if (ended || opened.bufferedAmount <= MOST / 2) {
                    clearInterval(look);
                    local.resume();
                }
            }, LOOK);
        }
    });
    local.on("end", () => {
        if (opened.readyState === 1) {
            opened.send(new Uint8Array());
        }
    });
    if (local.destroyed) {
        opened.close();
    }
    local.resume();
}
