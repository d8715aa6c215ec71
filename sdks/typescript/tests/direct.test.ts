/** Against the server itself. */

import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, test } from "node:test";

import { AtollError, Client, ConnectionError, PermissionDeniedError, Sandbox, SandboxNotFoundError, TimeoutError, UnauthenticatedError, UnknownTemplateError, callTool } from "../src/node.js";
import { checks } from "./checks.js";
import { Cutter } from "./cutter.js";
import { Server } from "./server.js";

let server: Server;
before(async () => {
    server = await Server.start();
});
after(async () => await server.close());

for (const [fact, check] of Object.entries(checks)) {
    test(fact, async () => {
        await using sb = await Sandbox.create(server.at);
        await check(sb);
    });
}

test("a sandbox that was made is deleted at the end, one that was connected to is not", async () => {
    let id = "";
    {
        await using sb = await Sandbox.create({ ...server.at, alias: "mine", metadata: { a: "b" }, env: { X: "y" }, timeout: 100 });
        id = sb.id;
        {
            await using same = await Sandbox.connect("mine", server.at);
            assert.equal(same.id, id);
        }
        assert.equal((await sb.commands.run("echo $X")).stdout, "y\n");
        const listed = [];
        for await (const info of Sandbox.list({ ...server.at, state: "running" })) {
            listed.push(info.sandboxID);
        }
        assert.deepEqual(listed, [id]);
    }
    await assert.rejects(Sandbox.connect(id, server.at), SandboxNotFoundError);
});

test("a list has all pages", async () => {
    const { client } = await Sandbox.create(server.at);
    const pages = await client.request("GET", "/sandboxes", { query: { limit: 1 } }, async (it) => it.headers.has("x-next-cursor"));
    assert.equal(pages, false);
    const made = await Promise.all(Array.from({ length: 3 }, () => Sandbox.create({ client })));
    let count = 0;
    for await (const _ of Sandbox.list({ client })) {
        count++;
    }
    assert.equal(count, 4);
    await Promise.all(made.map((sb) => sb.delete()));
});

test("a wrong key, template, field or address is told by name", async () => {
    const { url } = server.at;
    await assert.rejects(Sandbox.create({ url }), UnauthenticatedError);
    await assert.rejects(Sandbox.create({ url, apiKey: "atl_no" }), PermissionDeniedError);
    await assert.rejects(Sandbox.create({ ...server.at, template: "nope" }), UnknownTemplateError);
    await assert.rejects(Sandbox.create({ ...server.at, timeout: -1 }), { code: "INVALID_REQUEST", details: { field: "timeout" } });
    await assert.rejects(Sandbox.create({ ...server.at, tiemout: 1 } as object), { code: "INVALID_REQUEST" });
    await assert.rejects(Sandbox.create({ url: "nonsense" }), { code: "INVALID_REQUEST", details: { field: "url" } });
    await assert.rejects(Sandbox.create({ url, apiKey: "with\nline" }), { code: "INVALID_REQUEST", details: { field: "apiKey" } });
    const gone = await Cutter.start(server.port);
    const nowhere = gone.url;
    gone.close();
    const begin = Date.now();
    await assert.rejects(Sandbox.create({ url: nowhere }), (error: AtollError) => {
        assert.ok(error instanceof ConnectionError && !error.sent, String(error));
        assert.ok(error.message.startsWith(`${nowhere} cannot be reached: connect ECONNREFUSED`), error.message);
        assert.match(error.remedy ?? "", /atoll serve/);
        return true;
    });
    assert.ok(Date.now() - begin < 5000, "a server that never was there is not waited for");
});

test("time-outs say what timed out, and a call can be given up", async () => {
    await using sb = await Sandbox.create(server.at);
    const handle = await sb.commands.run("sleep 100", { background: true });
    await assert.rejects(handle.wait({ timeout: 0.1 }), (error: AtollError) => {
        assert.ok(error instanceof TimeoutError && error.message.includes(handle.execID), error.message);
        return true;
    });
    const signal = AbortSignal.timeout(100);
    await assert.rejects(sb.commands.run("sleep 100", { signal }), { name: "TimeoutError" });
    // Whoever waits for a stream can go as well.
    await assert.rejects(handle.wait({ signal: AbortSignal.abort(new Error("enough")) }), /enough/);
});

test("a client that is warm makes no connection anew", async () => {
    using line = await Cutter.start(server.port);
    await using sb = await Sandbox.create({ ...server.at, url: line.url });
    await sb.commands.run("true");
    const warm = line.connections;
    for (let count = 0; count < 50; count++) {
        await sb.commands.run("true");
    }
    assert.ok(warm <= 2, String(warm));
    assert.equal(line.connections, warm);
});

test("a model's calls do what they say, and are told what is wrong", async () => {
    await using sb = await Sandbox.create(server.at);
    const call = async (name: string, args: unknown) => await callTool(sb, { name, arguments: args });
    assert.equal(await call("write_file", '{"path": "a.txt", "content": "1\\n2\\n3\\n"}'), "/home/user/a.txt has 6 bytes");
    assert.equal(await call("read_file", { path: "a.txt", start_line: 2, end_line: 2 }), "2");
    assert.equal(await call("execute_code", { language: "python", code: "print(6*7)" }), "exit code 0\nstdout:\n42\n");
    assert.equal(await call("bash", { command: "echo e >&2; exit 3", cwd: "/tmp" }), "exit code 3\nstderr:\ne\n");
    assert.match(await call("bash", { command: "seq 100000" }), /more characters/);
    assert.match(await call("read_file", { path: "none" }), /^error: .*no such file/);
    for (const [args, told] of [["{", /not JSON/], ["[]", /not an object/], [{}, /command is missing/], [{ command: 1 }, /must be a string/], [{ command: "a", b: 1 }, /b is not known/], [{ command: "a", timeout: 0 }, /at least 1/]] as const) {
        assert.match(await call("bash", args), told);
    }
    assert.match(await call("execute_code", { language: "cobol", code: "" }), /one of python/);
    assert.match(await call("rm", {}), /there is no tool rm/);
});

test("what is no Atoll server, and codes that are not known, are told of", async () => {
    let body = "<html>";
    let status = 404;
    const other = createServer((_, response) => response.writeHead(status).end(body));
    await new Promise<void>((done) => other.listen(0, "127.0.0.1", done));
    const client = new Client({ url: `http://127.0.0.1:${(other.address() as AddressInfo).port}/` });
    await assert.rejects(client.json("GET", "/sandboxes"), { code: "UNEXPECTED_ANSWER", status: 404 });
    body = JSON.stringify({ error: "new", code: "BRAND_NEW", category: "quota", remedy: "wait", request_id: "req_1" });
    await assert.rejects(client.json("GET", "/"), (error: AtollError) => {
        assert.ok(error.constructor === AtollError);
        assert.deepEqual([error.code, error.category, error.remedy, error.requestId], ["BRAND_NEW", "quota", "wait", "req_1"]);
        return true;
    });
    status = 200;
    body = "hello";
    await assert.rejects(client.json("GET", "/"), /not JSON/);
    other.close();
    // One that takes a request and says nothing.
    const silent = createServer(() => {});
    await new Promise<void>((done) => silent.listen(0, "127.0.0.1", done));
    const waiting = new Client({ url: `http://127.0.0.1:${(silent.address() as AddressInfo).port}`, requestTimeout: 0.2 });
    await assert.rejects(waiting.json("GET", "/sandboxes"), /GET \/sandboxes: not done after 0.2 s/);
    silent.closeAllConnections();
    silent.close();
});
