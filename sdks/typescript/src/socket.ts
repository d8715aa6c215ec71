/** WebSockets to a server. They authenticate with a one-time ticket in the URL, as URLs are logged and must not contain the API key. */

import type { CallOptions, Client } from "./client.js";
import { Deadline, idleTimeout } from "./deadline.js";
import { AtollError, ConnectionError } from "./error.js";
import type { Ticket } from "./generated/api.js";
import { platform } from "./platform.js";

/** Close code and reason of a WebSocket. */
export interface Closed {
    code: number;
    reason: string;
}

/** Listeners of an open WebSocket. */
export interface SocketListeners {
    message(data: ArrayBuffer): void;
    /** Called once. */
    close(event: Closed): void;
}

/** A WebSocket of the package `ws`, which has more methods than those of browsers. */
interface NodeWebSocket extends WebSocket {
    isPaused?: boolean;
    on?(name: "ping", heard: () => void): void;
    terminate?(): void;
}

/** The close event of a socket whose peer is gone. */
const GONE: Closed = { code: 1006, reason: "the server says nothing any more" };

/** Opens a WebSocket. The listeners are attached before it opens, as the first message may arrive at once. */
export async function openSocket(client: Client, path: string, listeners: SocketListeners, options: CallOptions = {}): Promise<WebSocket> {
    const seconds = options.requestTimeout ?? client.requestTimeout;
    const deadline = new Deadline(`the WebSocket ${path}`, seconds, options.signal);
    try {
        const Socket = await platform.WebSocket();
        const ticket = client.hasKey
            ? (await client.json<Ticket>("POST", "/tickets", { json: {}, repeat: "always", signal: deadline.signal })).ticket
            : undefined;
        const socket: NodeWebSocket = new Socket(client.address(path, { ticket }).replace(/^http/, "ws"));
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
            const remedy = "check that the server runs, and that proxies in between allow WebSockets";
            fail(new ConnectionError(`${client.url}: a WebSocket could not be opened`, { sent: true, remedy }));
        };
        socket.addEventListener("open", () => done());
        socket.addEventListener("error", failed);
        socket.addEventListener("close", failed);
    });
}

/**
 * Calls `listeners.close` when an open socket ends, also when the idle timeout expires. Returns a function that resets the idle timeout, to
 * be called for each message.
 */
function listen(socket: NodeWebSocket, client: Client, listeners: SocketListeners): () => void {
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
                // A paused socket receives no pings.
                return heard();
            }
            if (asking || Date.now() - last < idleTimeout.milliseconds) {
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
        const looking = setInterval(() => void look(), idleTimeout.milliseconds / 4);
        socket.addEventListener("close", end);
        heard();
    });
    return heard;
}

/** Whether the server responds to a health check. WebSockets of browsers do not report pings. */
async function answers(client: Client): Promise<boolean> {
    try {
        await client.json("GET", "/health", { requestTimeout: idleTimeout.milliseconds / 1000 });
        return true;
    } catch (error) {
        // An error response is a response too.
        return error instanceof AtollError && error.status !== undefined;
    }
}

/** The error behind a close code. A plain GET of the route returns it with code and remedy. */
export async function closeReason(client: Client, path: string, event: Closed): Promise<Error> {
    try {
        await client.json("GET", path, {});
    } catch (error) {
        return error as Error;
    }
    return new ConnectionError(`the WebSocket was closed with ${event.code}: ${event.reason}`, { sent: true });
}
