/** WebSockets to a server. The key is not in the address, which is written down everywhere: a ticket is. */

import type { CallOptions, Client } from "./client.js";
import { Deadline, silence } from "./deadline.js";
import { AtollError, ConnectionError } from "./error.js";
import type { Ticket } from "./generated/api.js";
import { platform } from "./platform.js";

/** How a socket ended. */
export interface Closed {
    code: number;
    reason: string;
}

/** What is told by a socket that was opened. */
export interface SocketListeners {
    message(data: ArrayBuffer): void;
    /** Once. */
    close(event: Closed): void;
}

/** A WebSocket of the package `ws`, which can more than those of the web. */
interface Telling extends WebSocket {
    isPaused?: boolean;
    on?(name: "ping", heard: () => void): void;
    terminate?(): void;
}

/** Of a socket that the other side does not know of any more. */
const GONE: Closed = { code: 1006, reason: "the server says nothing any more" };

/** Opens one. The first message may come with the opening: whoever listens does from the beginning. */
export async function openSocket(client: Client, path: string, listeners: SocketListeners, options: CallOptions = {}): Promise<WebSocket> {
    const seconds = options.requestTimeout ?? client.requestTimeout;
    const deadline = new Deadline(`the WebSocket ${path}`, seconds, options.signal);
    try {
        const Socket = await platform.WebSocket();
        const ticket = client.hasKey
            ? (await client.json<Ticket>("POST", "/tickets", { json: {}, repeat: "always", signal: deadline.signal })).ticket
            : undefined;
        const socket: Telling = new Socket(client.address(path, { ticket }).replace(/^http/, "ws"));
        socket.binaryType = "arraybuffer";
        const heard = listen(socket, client, listeners);
        socket.addEventListener("message", (event) => {
            heard();
            listeners.message(event.data as ArrayBuffer);
        });
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

/**
 * Tells of the end of a socket that was opened, also if nobody else does: when nothing was heard for too long. What is returned is to be
 * called when something is.
 */
function listen(socket: Telling, client: Client, listeners: SocketListeners): () => void {
    let last = Date.now();
    const heard = () => {
        last = Date.now();
    };
    socket.on?.("ping", heard);
    socket.addEventListener("open", () => {
        let [over, asking] = [false, false];
        const end = (event: Closed) => {
            clearInterval(looking);
            if (!over) {
                over = true;
                listeners.close(event);
            }
        };
        const look = async () => {
            if (socket.isPaused) {
                // Whoever does not listen cannot hear.
                return heard();
            }
            if (asking || Date.now() - last < silence.most) {
                return;
            }
            asking = true;
            if (!socket.on && (await answers(client))) {
                asking = false;
                return heard();
            }
            end(GONE);
            socket.terminate ? socket.terminate() : socket.close();
        };
        const looking = setInterval(() => void look(), silence.most / 4);
        socket.addEventListener("close", end);
        heard();
    });
    return heard;
}

/** Whether the server is there. WebSockets of the web tell nothing of its pings: it is asked beside them. */
async function answers(client: Client): Promise<boolean> {
    try {
        await client.json("GET", "/health", { requestTimeout: silence.most / 1000 });
        return true;
    } catch (error) {
        // Whoever refuses is there.
        return error instanceof AtollError && error.status !== undefined;
    }
}

/** What a close code of the server's means: the route, asked without a WebSocket, tells it with code and remedy. */
export async function closeReason(client: Client, path: string, event: Closed): Promise<Error> {
    try {
        await client.json("GET", path, {});
    } catch (error) {
        return error as Error;
    }
    return new ConnectionError(`the WebSocket was closed with ${event.code}: ${event.reason}`, { sent: true });
}
