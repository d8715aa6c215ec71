/** Tests without a server: profiles, archives, schemas, and that generated files are up to date. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, realpathSync, rmSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { AtollError, Client, errorClasses, toolSchemas } from "../src/node.js";
import { parseProfiles } from "../src/node/config.js";
import { downloadDir } from "../src/node/directories.js";
import { END, type TarEntry, entries, header, padding } from "../src/node/tar.js";

const root = new URL("../../", import.meta.url);

test("types, errors and the reference are made from what is committed", () => {
    for (const script of ["generate.mjs", "reference.mjs"]) {
        execFileSync("node", [fileURLToPath(new URL(`scripts/${script}`, root)), "--check"], { stdio: "pipe" });
    }
});

test("every error class is an AtollError of its own name", () => {
    const all = Object.entries(errorClasses);
    assert.ok(all.length > 30);
    for (const [code, Class] of all) {
        const error = new Class("m", { code, category: "internal" });
        assert.ok(error instanceof AtollError && error instanceof Error);
        assert.equal(error.name.toUpperCase(), `${code.replaceAll("_", "")}ERROR`);
    }
});

test("the server and its key come from the call, the environment or a profile, and a key goes to no other server", () => {
    const home = mkdtempSync(join(tmpdir(), "atoll-sdk-"));
    const kept = { ...process.env };
    const seen = (options = {}) => {
        const client = new Client(options);
        return [client.url, client.hasKey];
    };
    try {
        delete process.env.ATOLL_URL;
        delete process.env.ATOLL_API_KEY;
        process.env.XDG_CONFIG_HOME = home;
        assert.deepEqual(seen(), ["http://127.0.0.1:8080", false]);
        assert.throws(() => new Client({ profile: "work" }), { code: "INVALID_REQUEST" });
        mkdirSync(join(home, "atoll"));
        const text = '# mine\ndefault = "home" # the usual\n[profiles.home]\nurl = "http://home:1"\napi_key = "atl_1"\n[profiles."my work"]\r\nurl = \'https://work/\'\n[other]\nurl = "http://no"\n';
        writeFileSync(join(home, "atoll", "config.toml"), text);
        assert.deepEqual(seen(), ["http://home:1", true]);
        assert.deepEqual(seen({ profile: "my work" }), ["https://work", false]);
        assert.throws(() => new Client({ profile: "none" }), /has no profile "none"; there are: home, my work/);
        assert.deepEqual(seen({ url: "http://elsewhere" }), ["http://elsewhere", false]);
        process.env.ATOLL_URL = "http://env";
        assert.deepEqual(seen(), ["http://env", false]);
        process.env.ATOLL_API_KEY = "atl_2";
        assert.deepEqual(seen(), ["http://env", true]);
        assert.deepEqual(seen({ url: "http://elsewhere" }), ["http://elsewhere", false]);
        assert.deepEqual(seen({ url: "http://elsewhere", apiKey: "atl_3" }), ["http://elsewhere", true]);
        assert.throws(() => parseProfiles("default = home", "FILE"), /FILE, line 1: default is not a string/);
    } finally {
        process.env = kept;
        rmSync(home, { recursive: true });
    }
});

test("a call that is given up leaves no timer behind", async () => {
    const refusal = JSON.stringify({ error: "slow", code: "RATE_LIMITED", category: "rate_limit", retry_after: 600 });
    const server = createServer((_, response) => response.writeHead(429).end(refusal));
    await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
    const timers = () => process.getActiveResourcesInfo().filter((name) => name === "Timeout").length;
    try {
        const client = new Client({ url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, requestTimeout: 0 });
        const before = timers();
        const controller = new AbortController();
        const pending = client.json("GET", "/health", { signal: controller.signal });
        while (timers() === before) {
            await new Promise((done) => setImmediate(done));
        }
        controller.abort(new Error("enough"));
        await assert.rejects(pending, /enough/);
        // Connections that are kept have timers of their own.
        server.closeAllConnections();
        for (let tries = 0; timers() > before; tries++) {
            assert.ok(tries < 500, `${timers()} timers, and ${before} before`);
            await new Promise((done) => setImmediate(done));
        }
    } finally {
        server.close();
    }
});

async function* once(...parts: Buffer[]): AsyncGenerator<Buffer> {
    // One byte at a time here and there: blocks come in any pieces.
    const all = Buffer.concat(parts);
    for (let at = 0; at < all.length; at += 777) {
        yield all.subarray(at, at + 777);
    }
}

const entry = (name: string, more: Partial<TarEntry> = {}): TarEntry => ({ name, type: "file", mode: 0o644, size: 0, mtime: 1, target: "", ...more });
const file = (name: string, text: string) => [header(entry(name, { size: text.length })), Buffer.from(text), padding(text.length)];

test("archives keep long names and any contents", async () => {
    const long = `d/${"ü".repeat(120)}`;
    const parts = [...file(long, "x".repeat(1000)), ...file("a", ""), header(entry("l", { type: "link", target: long })), END];
    const found = [];
    for await (const { entry, contents } of entries(once(...parts))) {
        let size = 0;
        for await (const part of contents) {
            size += part.length;
        }
        found.push([entry.name, entry.type, size, entry.target]);
    }
    assert.deepEqual(found, [[long, "file", 1000, ""], ["a", "file", 0, ""], ["l", "link", 0, long]]);
    const list = execFileSync("tar", ["-t"], { input: Buffer.concat(parts), env: { LC_ALL: "C.UTF-8", PATH: process.env.PATH } });
    assert.equal(list.toString(), `${long}\na\nl\n`);
    await assert.rejects(async () => {
        for await (const _ of entries(once(...file("cut", "x".repeat(600)).slice(0, 2)))) {
        }
    }, /ends in the middle/);
});

test("an archive that wants out of the directory does not get out", async () => {
    const here = mkdtempSync(join(tmpdir(), "atoll-sdk-"));
    const link = (name: string, target: string) => header(entry(name, { type: "link", target }));
    const hostile = [
        ...file("../out", "1"),
        ...file(join(here, "absolute"), "2"),
        link("up", ".."),
        ...file("up/out", "3"),
        link("in", "."),
        ...file("in/through", "4"),
        link("deep/../../x", "y"),
        ...file("old/out", "5"),
        header(entry("fifo", { type: "other" })),
        ...file("good", "6"),
        END,
    ];
    const server = createServer((_, response) => response.end(Buffer.concat(hostile)));
    await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
    try {
        mkdirSync(join(here, "to"));
        // One that was there before.
        symlinkSync("..", join(here, "to", "old"));
        const client = new Client({ url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, apiKey: "k" });
        const done = await downloadDir(client, "/archive", join(here, "to"), {});
        assert.deepEqual(done.skipped.map(({ name }) => name), ["../out", join(here, "absolute"), "up", "in/through", "deep/../../x", "old/out", "fifo"]);
        assert.equal(readFileSync(join(here, "to", "good"), "utf8"), "6");
        assert.equal(readFileSync(join(here, "to", "up", "out"), "utf8"), "3");
        assert.ok(!existsSync(join(here, "out")) && !existsSync(join(here, "absolute")));
    } finally {
        server.close();
        rmSync(here, { recursive: true });
    }
});

const FILE = "file";
const [LINK, HARD, OTHER] = ["link", "hard link", "other"] as const;
const hostile: [string, TarEntry["type"], string][][] = [
    [["/outside", FILE, ""]],
    [["../outside", FILE, ""]],
    [["a/../../outside", FILE, ""]],
    [["link", LINK, ".."]],
    [["link", LINK, "/etc"]],
    [["link", LINK, ""]],
    [["link", LINK, ".."], ["link/outside", FILE, ""]],
    [["here", LINK, "."], ["here/outside", FILE, ""]],
    [["a/b/c", LINK, ".."], ["link", LINK, "a/b/c/../../outside"]],
    [["a/l1", LINK, ".."], ["a/l2", LINK, "l1/.."]],
    [["a/l1", LINK, ".."], ["a/l2", LINK, "./l1/../outside"]],
    [["link", HARD, "../secret"]],
    [["link", HARD, "/etc/passwd"]],
    [["link", HARD, "there/secret"]],
    [["link", HARD, "there"]],
    [["link", HARD, "no-such"]],
    [["there/outside", FILE, ""]],
    [["pipe", OTHER, ""]],
];
for (const [number, entries] of hostile.entries()) {
    test(`nothing of an archive gets out: ${number} ${entries.map(([name, , target]) => `${name} → ${target}`).join(", ")}`, async () => {
        const here = mkdtempSync(join(tmpdir(), "atoll-sdk-"));
        const [top, secret] = [join(here, "top"), join(here, "secret")];
        const parts = entries.map(([name, type, target]) => (type === FILE ? Buffer.concat(file(name, "evil")) : header(entry(name, { type, target, mode: 0o7777 }))));
        const server = createServer((_, response) => response.end(Buffer.concat([...parts, ...file("fine", "fine"), END])));
        await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
        try {
            mkdirSync(top);
            writeFileSync(secret, "secret");
            // An existing local link points outside too.
            symlinkSync(here, join(top, "there"));
            const client = new Client({ url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, apiKey: "k" });
            const { skipped } = await downloadDir(client, "/archive", top, {});
            assert.ok(skipped.length > 0 && skipped.every(({ why }) => why !== ""));
            assert.deepEqual(readdirSync(here).sort(), ["secret", "top"]);
            assert.equal(statSync(secret).nlink, 1);
            assert.equal(readFileSync(join(top, "fine"), "utf8"), "fine");
            const found = execFileSync("find", [top], { encoding: "utf8" }).trim().split("\n");
            for (const path of found.filter((path) => path !== join(top, "there"))) {
                assert.ok(`${realpathSync(path)}/`.startsWith(`${realpathSync(top)}/`), path);
            }
        } finally {
            server.close();
            rmSync(here, { recursive: true });
        }
    });
}

test("hard links of an archive are made", async () => {
    const here = mkdtempSync(join(tmpdir(), "atoll-sdk-"));
    const parts = [...file("d/first", "contents"), header(entry("second", { type: HARD, target: "./d/first" })), END];
    const server = createServer((_, response) => response.end(Buffer.concat(parts)));
    await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
    try {
        const client = new Client({ url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, apiKey: "k" });
        // The second time over what is there already.
        for (const _ of [1, 2]) {
            const done = await downloadDir(client, "/archive", here, {});
            assert.deepEqual([done.entries, done.skipped], [2, []]);
            assert.equal(readFileSync(join(here, "second"), "utf8"), "contents");
            assert.equal(statSync(join(here, "second")).ino, statSync(join(here, "d/first")).ino);
            assert.deepEqual(readdirSync(here).sort(), ["d", "second"]);
        }
    } finally {
        server.close();
        rmSync(here, { recursive: true });
    }
});

test("the tools are those of every SDK", () => {
    const { schemas } = JSON.parse(readFileSync(new URL("../tools.json", root), "utf8"));
    assert.deepEqual(toolSchemas("function").map((one) => one.function), schemas);
});

test("tool schemas exist in both forms", () => {
    const names = ["read_file", "write_file", "execute_code", "bash"];
    const functions = toolSchemas("function");
    assert.deepEqual(functions.map((one) => one.function.name), names);
    const plain = toolSchemas("input_schema");
    assert.deepEqual(plain.map((one) => one.name), names);
    assert.deepEqual(plain[0]?.input_schema, functions[0]?.function.parameters);
});
