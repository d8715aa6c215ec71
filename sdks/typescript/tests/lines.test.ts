/** Over a line that breaks again and again, and across kills of the server: nothing is missing and nothing is there twice. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Sandbox } from "../src/node.js";
import { checks } from "./checks.js";
import { Cutter } from "./cutter.js";
import { Server } from "./server.js";

let server: Server;
let line: Cutter;
before(async () => {
    server = await Server.start();
    line = await Cutter.start(server.port, 7);
});
after(async () => {
    assert.ok(line.cuts > 20, `${line.cuts} cuts`);
    line.close();
    await server.close();
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
    // One that was waited for when the server was killed is found again.
    assert.equal((await waited).stdout, "waited for\n");
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
