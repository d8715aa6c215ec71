/** WebSockets to a server. The key is not in the address, which is written down everywhere: a ticket is. */

import type { CallOptions, Client } from "./client.js";
import { Deadline } from "./deadline.js";
import { ConnectionError } from "./error.js";
import type { Ticket } from "./generated/api.js";
import { platform } from "./platform.js";

/** What is told by a socket that was opened. */
export interface SocketListeners {
    message(data: ArrayBuffer): void;
    close(event: { code: number; reason: string }): void;
}

/** Opens one. The first message may come with the opening: whoever listens does from the beginning. */
export async function openSocket(client: Client, path: string, listeners: SocketListeners, options: CallOptions = {}): Promise<WebSocket> {
    const seconds = options.requestTimeout ?? client.requestTimeout;
    const deadline = new Deadline(`the WebSocket ${path}`, seconds, options.signal);
    try {
        const Socket = await platform.WebSocket();
        const ticket = client.hasKey
            ? (await client.json<Ticket>("POST", "/tickets", { json: {}, repeat: "always", signal: deadline.signal })).ticket
            : undefined;
        const socket = new Socket(client.address(path, { ticket }).replace(/^http/, "ws"));
        socket.binaryType = "arraybuffer";
        socket.addEventListener("message", (event) => listeners.message(event.data as ArrayBuffer));
        try {
            await deadline.race(opened(socket, client, listeners));
            return socket;
        } catch (error) {
            socket.close();
            throw error;
        }
    } finally {
        deadline.end();
    }
}

function opened(socket: WebSocket, client: Client, listeners: SocketListeners): Promise<void> {
    return new Promise((done, fail) => {
        const failed = () => {
            const remedy = "see that the server runs, and that what is between lets WebSockets through";
            fail(new ConnectionError(`${client.url}: a WebSocket could not be opened`, { sent: true, remedy }));
        };
        socket.addEventListener("open", () => {
            socket.addEventListener("close", (event) => listeners.close(event));
            done();
        });
        socket.addEventListener("error", failed);
        socket.addEventListener("close", failed);
    });
}

/** What a close code of the server's means: the route, asked without a WebSocket, tells it with code and remedy. */
export async function closeReason(client: Client, path: string, event: { code: number; reason: string }): Promise<Error> {
    try {
        await client.json("GET", path, {});
    } catch (error) {
        return error as Error;
    }
    return new ConnectionError(`the WebSocket was closed with ${event.code}: ${event.reason}`, { sent: true });
}
