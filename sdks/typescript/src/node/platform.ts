/** The platform functions for Node. */

import { UnsupportedError } from "../error.js";
import type { Platform } from "../platform.js";
import { place } from "./config.js";
import { downloadDir, uploadDir } from "./directories.js";
import { forward } from "./forward.js";

export const nodePlatform: Platform = {
    place,
    fromBase64: (text) => Buffer.from(text, "base64"),
    streamsBodies: true,
    async WebSocket() {
        const name = "ws";
        // `ws` reports pings and can be paused.
        const found = await import(name).catch(() => undefined);
        if (typeof found?.WebSocket === "function") {
            return found.WebSocket as typeof WebSocket;
        }
        if (typeof WebSocket !== "undefined") {
            return WebSocket;
        }
        throw new UnsupportedError("this Node has no WebSocket", "npm install ws, or use Node 22 or newer");
    },
    forward,
    uploadDir,
    downloadDir,
};
