/** The examples of the README do what they show. `scripts/examples.mjs` wrote them where they are compiled. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { Server } from "./server.js";

let server: Server;
before(async () => {
    server = await Server.start();
});
after(async () => await server.close());

const shown = new URL("../../tests/examples/", import.meta.url);
for (const name of readdirSync(shown).filter((name) => name.endsWith(".json"))) {
    test(`example ${name.split(".")[0]} prints what it shows`, async () => {
        const file = new URL(`examples/${name.replace("json", "js")}`, import.meta.url);
        const prints = JSON.parse(readFileSync(new URL(name, shown), "utf8")) as string[];
        assert.ok(prints.length > 0);
        const env = { ...process.env, ATOLL_URL: server.at.url, ATOLL_API_KEY: server.at.apiKey };
        const { stdout } = await promisify(execFile)("node", [fileURLToPath(file)], { env, timeout: 120_000 });
        assert.deepEqual(stdout.split("\n").filter((line) => line !== ""), prints);
    });
}
