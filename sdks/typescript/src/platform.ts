/** Differences between Node and browsers. The entry `node.ts` selects Node; no other module imports Node modules. */

import type { Client } from "./client.js";
import { UnsupportedError } from "./error.js";
import type { DirectoryOptions, Transferred } from "./files.js";
import type { Forward, ForwardOptions } from "./sandbox.js";

/** URL and API key of a server. */
export interface ServerLocation {
    url?: string | undefined;
    apiKey?: string | undefined;
}

export interface Platform {
    /** The server that the environment configures. */
    place(profile: string | undefined): ServerLocation;
    fromBase64(text: string): Uint8Array;
    /** Whether request bodies can be streams. */
    streamsBodies: boolean;
    WebSocket(): Promise<typeof WebSocket>;
    forward(client: Client, sandbox: string, port: number, options: ForwardOptions): Promise<Forward>;
    uploadDir(client: Client, url: string, from: string, options: DirectoryOptions): Promise<Transferred>;
    downloadDir(client: Client, url: string, to: string, options: DirectoryOptions): Promise<Transferred>;
}

function onlyNode(what: string) {
    return async (): Promise<never> => {
        throw new UnsupportedError(`${what} needs Node`, "run it in Node");
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
