/** WebSockets to a server. The key is not in the address, which is written down everywhere: a ticket is. */

import type { CallOptions, Client, Query } from "./client.js";
import { Deadline } from "./deadline.js";
import { ConnectionError } from "./error.js";
import type { Ticket } from "./generated/api.js";
import { platform } from "./platform.js";

/** Opens one; its messages are `ArrayBuffer`s. */
export async function openSocket(client: Client, path: string, query: Query, options: CallOptions = {}): Promise<WebSocket> {
    const seconds = options.requestTimeout ?? client.requestTimeout;
    const deadline = new Deadline(`the WebSocket ${path}`, seconds, options.signal);
    try {
        const Socket = await platform.WebSocket();
        const ticket = client.hasKey
            ? (await client.json<Ticket>("POST", "/tickets", { json: {}, repeat: "always", signal: deadline.signal })).ticket
            : undefined;
        const socket = new Socket(client.address(path, { ...query, ticket }).replace(/^http/, "ws"));
        socket.binaryType = "arraybuffer";
        try {
            await deadline.race(opened(socket, client));
            return socket;
        } catch (error) {
            socket.close();
            throw error;
        }
    } finally {
        deadline.end();
    }
}

function opened(socket: WebSocket, client: Client): Promise<void> {
    return new Promise((done, fail) => {
        const failed = () => {
            const remedy = "see that the server runs, and that what is between lets WebSockets through";
            fail(new ConnectionError(`${client.url}: a WebSocket could not be opened`, { sent: true, remedy }));
        };
        socket.addEventListener("open", () => done());
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
