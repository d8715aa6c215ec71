/** Tests with a direct connection to the server. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, test } from "node:test";

import { AtollError, Client, ConnectionError, InvalidApiKeyError, MissingApiKeyError, Sandbox, SandboxNotFoundError, TimeoutError, UnauthenticatedError, UnknownTemplateError, callTool } from "../src/node.js";
import { parseError } from "../src/failure.js";
import { checks, until } from "./checks.js";
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
        const conditions = [
            [{ metadata: { a: "b" }, template: "base", search: "MIN" }, 1],
            [{ metadata: { a: "c" } }, 0],
            [{ template: "none" }, 0],
        ] as const;
        for (const [condition, total] of conditions) {
            const found = [];
            for await (const info of Sandbox.list({ ...server.at, ...condition })) {
                found.push(info.sandboxID);
            }
            assert.deepEqual(found, total === 1 ? [id] : []);
            assert.equal(await Sandbox.count({ ...server.at, ...condition }), total);
        }
    }
    await assert.rejects(Sandbox.connect(id, server.at), SandboxNotFoundError);
});

test("a list has all pages", async () => {
    const requested: (string | null)[] = [];
    const rows = Array.from({ length: 250 }, (_, number) => ({ sandboxID: `i${number}`, execID: `e${number}`, ptyID: `p${number}` }));
    let answer = (first: number): string => JSON.stringify(first < 0 ? rows[0] : rows.slice(first, first + 100));
    const pages = createServer((request, response) => {
        const { pathname, searchParams: query } = new URL(request.url ?? "", "http://here");
        // The sandbox is fetched before its commands.
        const first = pathname.endsWith("/i0") ? -1 : Number(query.get("cursor") ?? 0);
        if (first >= 0) {
            requested.push(query.get("cursor"));
        }
        response.writeHead(200, first >= 0 && first + 100 < rows.length ? { "x-next-cursor": String(first + 100) } : {});
        response.end(answer(first));
    });
    await new Promise<void>((done) => pages.listen(0, "127.0.0.1", done));
    const at = { url: `http://127.0.0.1:${(pages.address() as AddressInfo).port}`, apiKey: "k" };
    const listed = [];
    for await (const { sandboxID } of Sandbox.list(at)) {
        listed.push(sandboxID);
    }
    assert.deepEqual(listed, rows.map(({ sandboxID }) => sandboxID));
    const sb = await Sandbox.connect("i0", at);
    assert.deepEqual((await sb.commands.list()).map(({ execID }) => execID), rows.map(({ execID }) => execID));
    assert.deepEqual((await sb.pty.list()).map(({ ptyID }) => ptyID), rows.map(({ ptyID }) => ptyID));
    assert.deepEqual(requested, [1, 2, 3].flatMap(() => [null, "100", "200"]));
    answer = () => "<html>";
    await assert.rejects(sb.commands.list(), { code: "UNEXPECTED_ANSWER" });
    pages.close();
});

test("only a server that was there is waited for behind a proxy", async () => {
    const answers = [502, 200, 503, 502, 504, 200];
    const proxy = createServer((_, response) => response.writeHead(answers.shift() ?? 502).end("[]"));
    await new Promise<void>((done) => proxy.listen(0, "127.0.0.1", done));
    const client = new Client({ url: `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`, reconnect: 5 });
    await assert.rejects(client.json("GET", "/sandboxes", { repeat: "never" }), { code: "UNEXPECTED_ANSWER", status: 502 });
    assert.deepEqual(await client.json("GET", "/sandboxes"), []);
    // The server is unreachable three times, and then responds again.
    assert.deepEqual(await client.json("GET", "/sandboxes"), []);
    assert.deepEqual(answers, []);
    const begin = Date.now();
    await assert.rejects(client.json("GET", "/sandboxes"), { code: "UNEXPECTED_ANSWER", status: 502 });
    assert.ok(Date.now() - begin > 4000 && Date.now() - begin < 60_000, String(Date.now() - begin));
    proxy.close();
});

test("a command may read its input as slowly as its own time allows", async () => {
    // A busy machine answers within the client's time.
    await using sb = await Sandbox.create({ ...server.at, requestTimeout: 5 });
    const stdin = "x".repeat(6 << 20);
    const script = "echo begun; until [ -e go ]; do sleep 0.01; done; sleep 6; wc -c";
    const done = await sb.commands.run(script, { stdin, timeout: 60, onStdout: (text) => void (text === "begun\n" && sb.files.write("go", "")) });
    assert.equal(done.stdout, `begun\n${6 << 20}\n`);
});

test("remedies are in words of the SDK", () => {
    const read = (path: string): unknown => JSON.parse(readFileSync(new URL(`../../../../${path}`, import.meta.url), "utf8"));
    const { components } = read("openapi/v1.json") as { components: { schemas: { Code: { enum: string[] } } } };
    const samples = read("sdks/remedies.cases.json") as { code: string; remedy: string; details: Record<string, string> }[];
    assert.deepEqual([...new Set(samples.map(({ code }) => code))].sort(), [...components.schemas.Code.enum].sort());
    const http = /(GET|POST|PUT|PATCH|DELETE) |…\/|"\w+":|X-API-Key|header/;
    const remedies = samples.map((sample) => {
        const error = parseError(JSON.stringify({ error: "what", ...sample }), 400);
        const remedy = error?.remedy;
        assert.ok(remedy === undefined || !http.test(remedy), `${JSON.stringify(sample)}: ${remedy}`);
        // Only a body that no call of the SDK sends has nothing to say.
        assert.ok(remedy || sample.details.field === "body", JSON.stringify(sample));
        return remedy;
    });
    for (const remedy of ["give an integer as timeout", "give an integer of at least 0 as memoryMB", "give command", "see the reference of this SDK for cpuCount"]) {
        assert.ok(remedies.includes(remedy), remedy);
    }
});

test("the error of a wrong key, template, field or address names it", async () => {
    const { url } = server.at;
    await assert.rejects(Sandbox.create({ url }), (error: AtollError) => {
        assert.ok(error instanceof UnauthenticatedError && error instanceof MissingApiKeyError, String(error));
        assert.match(error.remedy ?? "", /ATOLL_API_KEY/);
        return true;
    });
    await assert.rejects(Sandbox.connect("nope", server.at), { code: "SANDBOX_NOT_FOUND", remedy: "Sandbox.list() lists yours" });
    await assert.rejects(Sandbox.create({ url, apiKey: "atl_no" }), (error: AtollError) => {
        assert.ok(error instanceof UnauthenticatedError && error instanceof InvalidApiKeyError, String(error));
        assert.equal(error.status, 401);
        return true;
    });
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
    assert.ok(Date.now() - begin < 20_000, "a server that never was there is not waited for");
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
    // The caller can also abort a stream.
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

test("what was done is not done again when the answer gets lost", async () => {
    using line = await Cutter.start(server.port);
    await using sb = await Sandbox.create({ ...server.at, url: line.url });
    const direct = await Sandbox.connect(sb.id, server.at);
    line.lose = "/pty HTTP";
    const terminal = await sb.pty.create({ shell: "/bin/cat" });
    assert.deepEqual([(await direct.pty.list()).map((one) => one.ptyID), line.lose], [[terminal.ptyID], undefined]);
    terminal.close();
    await sb.files.write("one", "1");
    line.lose = "/files/rename HTTP";
    await sb.files.rename("one", "two");
    assert.deepEqual([await direct.files.read("two"), await direct.files.exists("one"), line.lose], ["1", false, undefined]);
    // Calls that are not idempotent throw an error.
    for (const [words, work] of [["/restart HTTP", () => sb.restart()], ["/files/copy HTTP", () => sb.files.copy("two", "three")]] as const) {
        line.lose = words;
        await assert.rejects(work(), (error) => error instanceof ConnectionError && error.sent);
        assert.equal(line.lose, undefined);
    }
    await until(async () => await direct.files.exists("three"));
});

test("tool calls and their mistakes have the same results in every SDK", async () => {
    await using sb = await Sandbox.create(server.at);
    const cases = JSON.parse(readFileSync(new URL("../../../tools.cases.json", import.meta.url), "utf8"));
    assert.ok(cases.length > 20);
    for (const { name, arguments: given, result, part, length } of cases) {
        const output = await callTool(sb, { name, arguments: given });
        assert.equal(output, result ?? output, JSON.stringify(given));
        assert.ok(output.includes(part ?? ""), output);
        assert.equal([...output].length, length ?? [...output].length);
    }
    // Errors of the sandbox are thrown.
    await sb.stop();
    await assert.rejects(callTool(sb, { name: "bash", arguments: { command: "true" } }), { code: "SANDBOX_STOPPED" });
});

test("other servers and unknown codes have errors", async () => {
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
    // A server that accepts a request and never responds.
    const silent = createServer(() => {});
    await new Promise<void>((done) => silent.listen(0, "127.0.0.1", done));
    const waiting = new Client({ url: `http://127.0.0.1:${(silent.address() as AddressInfo).port}`, requestTimeout: 0.2 });
    await assert.rejects(waiting.json("GET", "/sandboxes"), /GET \/sandboxes: not done after 0.2 s/);
    silent.closeAllConnections();
    silent.close();
});
