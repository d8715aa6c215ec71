/** A server for the tests: the binary that `ATOLL_BIN` names, on a free port, with a data directory of its own. */

import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { randomInt } from "node:crypto";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

import { type ConnectionOptions, Sandbox } from "../src/node.js";

const binary = process.env.ATOLL_BIN;

/** A free port outside the ephemeral range: it is still free when a server is restarted. */
async function lastingPort(): Promise<number> {
    for (;;) {
        const port = randomInt(20_000, 32_000);
        const held = createServer();
        const free = await new Promise<boolean>((done) => held.once("error", () => done(false)).listen(port, "127.0.0.1", () => done(true)));
        if (free) {
            await new Promise((done) => held.close(done));
            return port;
        }
    }
}

export class Server {
    #child: ChildProcess | undefined;
    #port = 0;
    readonly data = mkdtempSync(join(tmpdir(), "atoll-sdk-"));

    static async start(): Promise<Server> {
        const server = new Server();
        server.#port = await lastingPort();
        // A test that fails half-way leaves no process.
        process.on("exit", () => server.#child?.kill("SIGKILL"));
        await server.#spawn();
        return server;
    }

    async #spawn(): Promise<void> {
        if (!binary) {
            throw new Error("ATOLL_BIN names no binary");
        }
        const args = ["serve", "--listen", `127.0.0.1:${this.#port}`, "--metrics-listen", "127.0.0.1:0", "--data-dir", this.data];
        this.#child = spawn(binary, args, { stdio: ["ignore", "pipe", "inherit"], env: { ...process.env, ATOLL_LOG_LEVEL: "error" } });
        const lines = createInterface({ input: this.#child.stdout as NodeJS.ReadableStream });
        for await (const line of lines) {
            const port = line.match(/^serving\s+http:\/\/127\.0\.0\.1:(\d+)/);
            if (port) {
                this.#port = Number(port[1]);
                return;
            }
        }
        throw new Error("the server did not start");
    }

    get port(): number {
        return this.#port;
    }

    /** Options for its admin. */
    get at(): ConnectionOptions & { url: string; apiKey: string } {
        const apiKey = readFileSync(join(this.data, "admin.key"), "utf8").trim();
        return { url: `http://127.0.0.1:${this.#port}`, apiKey };
    }

    async #end(signal: NodeJS.Signals): Promise<void> {
        const child = this.#child as ChildProcess;
        const ended = new Promise((done) => child.once("exit", done));
        child.kill(signal);
        await ended;
    }

    /** Kills the server and restarts it with the same address and data. */
    async killAndStart(): Promise<void> {
        await this.#end("SIGKILL");
        await this.#spawn();
    }

    /** It is there, and takes connections, and does nothing, while something is done. */
    async silenced(work: () => Promise<void>): Promise<void> {
        this.#child?.kill("SIGSTOP");
        try {
            await work();
        } finally {
            this.#child?.kill("SIGCONT");
        }
    }

    /** Ends it with everything that lasts. */
    async close(): Promise<void> {
        for await (const { sandboxID } of Sandbox.list(this.at)) {
            await (await Sandbox.connect(sandboxID, this.at)).delete();
        }
        await this.#end("SIGTERM");
        const instance = join("/run/atoll/instances", readFileSync(join(this.data, "tag"), "utf8").trim());
        do {
            execFileSync(binary as string, ["gc"], { env: { ...process.env, ATOLL_DATA_DIR: this.data }, stdio: "ignore" });
        } while (existsSync(instance));
        rmSync(this.data, { recursive: true, force: true });
    }
}
