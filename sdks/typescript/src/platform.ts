/** What differs between Node and browsers. The entry `node.ts` says that this is Node; nothing else of Node's is imported from here. */

import type { Client } from "./client.js";
import { UnsupportedError } from "./error.js";
import type { DirectoryOptions, Transferred } from "./files.js";
import type { Forward, ForwardOptions } from "./sandbox.js";

/** Where a server is, and the key for it. */
export interface Place {
    url?: string | undefined;
    apiKey?: string | undefined;
}

export interface Platform {
    /** What the environment says of the server. */
    place(profile: string | undefined): Place;
    fromBase64(text: string): Uint8Array;
    /** A body can be sent while it is made. */
    streamsBodies: boolean;
    WebSocket(): Promise<typeof WebSocket>;
    forward(client: Client, sandbox: string, port: number, options: ForwardOptions): Promise<Forward>;
    uploadDir(client: Client, url: string, from: string, options: DirectoryOptions): Promise<Transferred>;
    downloadDir(client: Client, url: string, to: string, options: DirectoryOptions): Promise<Transferred>;
}

function onlyNode(what: string) {
    return async (): Promise<never> => {
        throw new UnsupportedError(`${what} needs Node`, "call it in a program of Node");
    };
}

export let platform: Platform = {
    place: () => ({}),
    fromBase64: (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0)),
    streamsBodies: false,
    WebSocket: async () => WebSocket,
    forward: onlyNode("a local port"),
    uploadDir: onlyNode("a local directory"),
    downloadDir: onlyNode("a local directory"),
};

export function usePlatform(other: Platform): void {
    platform = other;
}
