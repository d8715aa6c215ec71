/** Broken connections and killed servers: nothing is lost and nothing happens twice. */

import assert from "node:assert/strict";
import { type AddressInfo, connect, createServer } from "node:net";
import { after, before, mock, test } from "node:test";

import { idleTimeout } from "../src/deadline.js";
import { AtollError, Client, ConnectionError, Sandbox } from "../src/node.js";
import { nodePlatform } from "../src/node/platform.js";
import { usePlatform } from "../src/platform.js";
import { checks, until } from "./checks.js";
import { Cutter } from "./cutter.js";
import { Server } from "./server.js";

const Pinging = await nodePlatform.WebSocket();

let server: Server;
let line: Cutter;
before(async () => {
    server = await Server.start();
    line = await Cutter.start(server.port, 7);
});
after(async () => {
    line.close();
    await server.close();
    assert.ok(line.cuts > 20, `${line.cuts} cuts`);
});

const bad = () => ({ ...server.at, url: line.url });

for (const [fact, check] of Object.entries(checks)) {
    test(`over a bad line: ${fact}`, async () => {
        await using sb = await Sandbox.create(bad());
        await check(sb);
    });
}

test("creates and commands are done once however often the line breaks", async () => {
    const before = await count();
    const made = [];
    for (let number = 0; number < 10; number++) {
        made.push(await Sandbox.create(bad()));
    }
    assert.equal(await count(), before + 10);
    const [sb] = made as [Sandbox];
    for (let number = 0; number < 30; number++) {
        await sb.commands.run(`echo ${number} >> ran`);
    }
    const ran = await sb.files.read("ran");
    assert.equal(ran, Array.from({ length: 30 }, (_, number) => `${number}\n`).join(""));
    await Promise.all(made.map((one) => one.delete()));
});

async function count(): Promise<number> {
    let all = 0;
    for await (const _ of Sandbox.list(server.at)) {
        all++;
    }
    return all;
}

test("an iteration goes on across kills of the server", async () => {
    await using sb = await Sandbox.create({ ...server.at, timeout: 0 });
    const script = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo $i; [ $((i%100)) = 0 ] && sleep 0.1; done; exit 5";
    const handle = await sb.commands.run(script, { background: true });
    const waited = sb.commands.run("sleep 2; echo waited for");
    let [text, kills] = ["", 0];
    for await (const event of handle) {
        assert.ok(event.type !== "gap");
        assert.equal(event.position, text.length);
        text += event.text;
        if (kills < 2 && text.length > 2000 * (kills + 1)) {
            kills++;
            await server.killAndStart();
        }
    }
    assert.equal(kills, 2);
    assert.equal(text, Array.from({ length: 3000 }, (_, index) => `${index + 1}\n`).join(""));
    assert.equal((await handle.wait()).exitCode, 5);
    // A `wait` during a kill of the server finds its command again.
    assert.equal((await waited).stdout, "waited for\n");
});

/** A WebSocket like that of browsers: it does not report pings and cannot be paused. */
class Plain {
    readonly #socket: WebSocket;

    constructor(url: string) {
        this.#socket = new Pinging(url);
    }

    set binaryType(type: BinaryType) {
        this.#socket.binaryType = type;
    }

    get readyState() {
        return this.#socket.readyState;
    }

    get bufferedAmount() {
        return this.#socket.bufferedAmount;
    }

    addEventListener(...args: Parameters<WebSocket["addEventListener"]>) {
        this.#socket.addEventListener(...args);
    }

    send(data: Uint8Array<ArrayBuffer>) {
        this.#socket.send(data);
    }

    close() {
        this.#socket.close();
    }
}

for (const [kind, Socket] of [["of ws", Pinging], ["of the web", Plain]] as const) {
    test(`a server that falls silent is not waited for without end, with WebSockets ${kind}`, async () => {
        await using made = await Sandbox.create({ ...server.at, timeout: 0 });
        const sb = await Sandbox.connect(made.id, { ...server.at, requestTimeout: 5, reconnect: 1 });
        const begun = new Promise<void>((done) => void sb.commands.run("echo begun; sleep 100", { background: true, onStdout: () => done() }));
        await begun;
        const handle = await sb.commands.run("sleep 1000", { background: true });
        const kept = idleTimeout.milliseconds;
        idleTimeout.milliseconds = 3000;
        usePlatform({ ...nodePlatform, WebSocket: async () => Socket as unknown as typeof WebSocket });
        try {
            const watch = await sb.files.watch(".");
            const terminal = await sb.pty.create({ shell: "/bin/cat" });
            await using forward = await sb.forward(9999);
            await made.commands.run("cat > listen.py", { stdin: "import socket\ncame = socket.create_server(('127.0.0.1', 9999)).accept()[0]\ncame.recv(1)\nopen('heard', 'w')\ncame.recv(1)" });
            await made.commands.run("python3 listen.py", { background: true });
            await until(async () => (await made.ports()).some(({ port }) => port === 9999));
            const local = connect(forward.port, "127.0.0.1");
            const closed = new Promise((done) => local.on("error", () => {}).on("close", done));
            local.write("x");
            await until(async () => await made.files.exists("heard"));
            // They are looked after often; until now nothing is wrong.
            idleTimeout.milliseconds = kept;
            assert.equal(forward.lastError, undefined);
            await server.silenced(async () => {
                idleTimeout.milliseconds = 1000;
                const drain = async (all: AsyncIterable<unknown>) => {
                    for await (const _ of all) {
                    }
                };
                const works = [drain(handle), handle.wait({ timeout: 0 }), drain(watch), drain(terminal), terminal.wait({ timeout: 0 })];
                await Promise.all(works.map(async (work) => await assert.rejects(work, AtollError)));
                await closed;
                assert.match(String(forward.lastError), /says nothing any more/);
            });
        } finally {
            idleTimeout.milliseconds = kept;
            usePlatform(nodePlatform);
        }
    });
}

test("a large directory is not sent for ever over a line that breaks", async () => {
    // Each attempt goes on for longer than a server takes that restarts.
    const clock = mock.method(Date, "now", (() => {
        let now = 0;
        return () => (now += 6000);
    })());
    let attempts = 0;
    const cut = createServer((socket) => {
        attempts++;
        socket.once("data", () => socket.destroy()).on("error", () => {});
    });
    await new Promise<void>((done) => cut.listen(0, "127.0.0.1", done));
    try {
        const client = new Client({ url: `http://127.0.0.1:${(cut.address() as AddressInfo).port}`, apiKey: "k", requestTimeout: 0 });
        await assert.rejects(client.json("PUT", "/x", { repeat: "always", requestTimeout: 0, signal: AbortSignal.timeout(60_000) }), ConnectionError);
        assert.ok(attempts < 30, String(attempts));
    } finally {
        clock.mock.restore();
        cut.close();
    }
});

test("a terminal and a watch go on across a kill of the server", async () => {
    await using sb = await Sandbox.create({ ...server.at, timeout: 0 });
    await using terminal = await sb.pty.create({ shell: "/bin/sh" });
    await using watch = await sb.files.watch(".");
    await server.killAndStart();
    await terminal.write("echo =$((40+2))=\n");
    let seen = "";
    for await (const data of terminal) {
        seen += new TextDecoder().decode(data);
        if (seen.includes("=42=")) {
            break;
        }
    }
    for await (const event of watch) {
        assert.equal(event.type, "overflow");
        break;
    }
});
