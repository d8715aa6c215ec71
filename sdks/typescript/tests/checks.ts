/** Checks for a good and a bad connection. Each gets a sandbox of the given server. */

import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, readFileSync, readlinkSync, rmSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { AtollError, CommandTimeoutError, FileExistsError, FileNotFoundError, NotAFileError, type Progress, Sandbox, StdinClosedError, TimeoutError } from "../src/node.js";

export const checks: Record<string, (sb: Sandbox) => Promise<void>> = {
    async "a command's output and exit code come back"(sb) {
        const done = await sb.commands.run("echo out; echo err >&2; pwd; echo $A; exit 3", { cwd: "/tmp", env: { A: "b" } });
        assert.deepEqual([done.exitCode, done.stdout, done.stderr], [3, "out\n/tmp\nb\n", "err\n"]);
        const runs = [
            () => sb.commands.run("echo begun; sleep 60", { timeout: 3 }),
            () => sb.commands.run("echo begun; sleep 60", { timeout: 3, onStdout: () => {} }),
            async () => (await sb.commands.run("echo begun; sleep 60", { timeout: 3, background: true })).wait(),
        ];
        for (const run of runs) {
            await assert.rejects(run, (error: CommandTimeoutError) => {
                assert.ok(error instanceof CommandTimeoutError && error.message.includes('"echo begun; sleep 60" was ended'), String(error));
                assert.deepEqual([error.result.exitCode, error.result.timedOut, error.result.stdout], [124, true, "begun\n"]);
                return true;
            });
        }
        const exact = await sb.commands.run("printf", { args: ["%s|", "a b", "$A"] });
        assert.equal(exact.stdout, "a b|$A|");
    },

    async "input is given once"(sb) {
        assert.equal((await sb.commands.run("cat", { stdin: "whole\n" })).stdout, "whole\n");
        assert.equal((await sb.commands.run("wc -c", { stdin: "x".repeat(100_000) })).stdout, "100000\n");
        const pieces: string[] = [];
        const followed = await sb.commands.run("cat", { stdin: "followed\n", onStdout: (text) => pieces.push(text) });
        assert.deepEqual([followed.stdout, pieces.join("")], ["followed\n", "followed\n"]);
        const handle = await sb.commands.run("md5sum", { background: true, openStdin: true });
        const part = "0123456789".repeat(2000);
        for (let count = 0; count < 5; count++) {
            await handle.sendStdin(part);
        }
        await handle.closeStdin();
        assert.equal((await handle.wait()).stdout, `${await md5(part.repeat(5))}  -\n`);
        await assert.rejects(handle.sendStdin("more"), StdinClosedError);
    },

    async "output arrives as it is written, in whole characters"(sb) {
        const pieces: string[] = [];
        // The two bytes of the é come apart: the second when it is known that the first has come.
        const script = "printf 'a\\303'; until [ -e heard ]; do sleep 0.01; done; printf '\\251\\n'; echo e >&2; printf '\\377'";
        const onStdout = (text: string) => {
            pieces.push(text);
            if (text === "a") {
                void sb.files.write("heard", "");
            }
        };
        const done = await sb.commands.run(script, { onStdout, onStderr: (text) => pieces.push(`!${text}`) });
        assert.equal(done.stdout, "aé\n\ufffd");
        assert.equal(done.stderr, "e\n");
        assert.ok(pieces.join("").includes("é"), pieces.join("|"));
    },

    async "a wait that is given up loses nothing, and listeners hear everything once"(sb) {
        const pieces: string[] = [];
        const script = "echo one; until [ -e go1 ]; do sleep 0.01; done; echo two; until [ -e go2 ]; do sleep 0.01; done; printf 'three\\303'; exit 6";
        const handle = await sb.commands.run(script, { background: true, onStdout: (text) => pieces.push(text) });
        await until(() => pieces.join("") === "one\n");
        await assert.rejects(handle.wait({ timeout: 0.05 }), TimeoutError);
        // Listeners are called although no call waits.
        await sb.files.write("go1", "");
        await until(() => pieces.join("") === "one\ntwo\n");
        await assert.rejects(handle.wait({ timeout: 0.05 }), TimeoutError);
        // Another handle without listeners waits twice.
        const other = await sb.commands.connect(handle.execID);
        await assert.rejects(other.wait({ timeout: 0.3 }), TimeoutError);
        handle.disconnect();
        await sb.files.write("go2", "");
        for (const one of [handle, other]) {
            const [first, again] = await Promise.all([one.wait(), one.wait()]);
            assert.deepEqual([first.exitCode, first.stdout], [6, "one\ntwo\nthree\ufffd"]);
            assert.deepEqual([again, await one.wait()], [first, first]);
        }
        assert.equal(pieces.join(""), "one\ntwo\nthree\ufffd");
    },

    async "a command in the background is followed from any position, by any client"(sb) {
        const handle = await sb.commands.run("seq 20000; seq 20000 >&2; exit 7", { background: true });
        const expected = Array.from({ length: 20000 }, (_, index) => `${index + 1}\n`).join("");
        const text = { stdout: "", stderr: "" };
        let position = 0;
        for await (const event of handle) {
            assert.ok(event.type !== "gap");
            assert.equal(event.position, position);
            position += event.data.length;
            text[event.type] += event.text;
        }
        assert.ok(text.stdout === expected && text.stderr === expected);
        const again = await sb.commands.connect(handle.execID);
        let rest = 0;
        for await (const event of again.output({ after: 1000 })) {
            rest += event.type === "gap" ? 0 : event.data.length;
        }
        assert.equal(rest, position - 1000);
        assert.equal((await again.wait()).exitCode, 7);
        const endless = await sb.commands.run("sleep 1000", { background: true });
        await endless.kill();
        const killed = await endless.wait();
        assert.deepEqual([killed.exitCode, killed.signal], [137, 9]);
    },

    async "files are written, read, looked at and taken away"(sb) {
        const file = await sb.files.write("d/notes.txt", "häl\n", { mode: "600" });
        assert.deepEqual([file.path, file.size, file.mode], ["/home/user/d/notes.txt", 5, "0600"]);
        assert.equal(await sb.files.read("d/notes.txt"), "häl\n");
        const bytes = new Uint8Array(3 << 20).map((_, index) => (index * 7919) >> 8);
        await sb.files.write("d/part", bytes.slice(0, 100_000));
        await sb.commands.run("for i in $(seq 30); do cat d/part; done > d/big");
        const steps: Progress[] = [];
        const read = await sb.files.read("d/big", { format: "bytes", onProgress: (progress) => steps.push(progress) });
        assert.equal(read.length, 3_000_000);
        assert.ok(Buffer.from(read.subarray(2_900_000)).equals(Buffer.from(bytes.subarray(0, 100_000))));
        assert.deepEqual(steps.at(-1), { bytes: 3_000_000, total: 3_000_000 });
        assert.equal((await (await sb.files.read("d/part", { format: "blob" })).arrayBuffer()).byteLength, 100_000);
        let streamed = 0;
        for await (const piece of await sb.files.read("d/big", { format: "stream" })) {
            streamed += piece.length;
        }
        assert.equal(streamed, 3_000_000);
        await sb.files.makeDir("d/e/f");
        const names = (await sb.files.list("d", { depth: 2 })).map((one) => one.path).sort();
        assert.deepEqual(names, ["big", "e", "e/f", "notes.txt", "part"]);
        await sb.files.rename("d/notes.txt", "d/moved");
        assert.deepEqual([await sb.files.exists("d/notes.txt"), (await sb.files.stat("d/moved")).type], [false, "file"]);
        await sb.files.chmod("d/moved", "644");
        const found = await sb.files.search("d", { content: "häl" });
        assert.deepEqual([found.results[0]?.name, found.results[0]?.line], ["moved", 1]);
        await sb.files.remove("d/moved");
        assert.equal(await sb.files.exists("d/moved"), false);
    },

    async "an error of a path has its own class"(sb) {
        await sb.files.makeDir("wrong");
        await assert.rejects(sb.files.read("wrong"), (error: AtollError) => {
            assert.ok(error instanceof NotAFileError && error instanceof AtollError);
            assert.deepEqual([error.code, error.category, error.remedy, error.status], ["NOT_A_FILE", "validation", "name a regular file", 400]);
            assert.match(error.requestId ?? "", /^req_/);
            assert.match(error.message, /"\/home\/user\/wrong" is not a regular file/);
            return true;
        });
        await assert.rejects(sb.files.read("wrong/none"), FileNotFoundError);
        await assert.rejects(sb.files.remove("wrong/none"), FileNotFoundError);
        await assert.rejects(sb.files.list("/etc/hostname"), { code: "NOT_A_DIRECTORY" });
        await sb.files.write("wrong/a", "");
        await sb.files.write("wrong/b", "");
        await assert.rejects(sb.files.rename("wrong/a", "wrong/b"), FileExistsError);
        await assert.rejects(sb.commands.run("true", { cwd: "/nowhere" }), { code: "CWD_NOT_FOUND" });
    },

    async "directories go in and out with modes and links"(sb) {
        const here = mkdtempSync(join(tmpdir(), "atoll-sdk-"));
        try {
            const long = "n".repeat(120);
            mkdirSync(join(here, "in", "sub"), { recursive: true });
            writeFileSync(join(here, "in", "run.sh"), "#!/bin/sh\n", { mode: 0o755 });
            writeFileSync(join(here, "in", "sub", long), "x".repeat(10_000));
            writeFileSync(join(here, "in", "empty"), "");
            symlinkSync("../run.sh", join(here, "in", "sub", "link"));
            let last = 0;
            const sent = await sb.files.uploadDir(join(here, "in"), "tree", { onProgress: ({ bytes }) => (last = bytes) });
            assert.deepEqual([sent.entries, sent.bytes, sent.skipped, last], [5, 10_010, [], 10_010]);
            assert.equal((await sb.files.stat("tree/run.sh")).mode, "0755");
            await sb.commands.run("ln -sf /etc/passwd tree/out; ln -sf ../../.. tree/sub/up");
            const got = await sb.files.downloadDir("tree", join(here, "out"));
            assert.deepEqual(got.skipped.map(({ name }) => name.replace(/^\.\//, "")).sort(), ["out", "sub/up"]);
            assert.equal(statSync(join(here, "out", "run.sh")).mode & 0o777, 0o755);
            assert.equal(readFileSync(join(here, "out", "sub", long), "utf8").length, 10_000);
            assert.equal(readlinkSync(join(here, "out", "sub", "link")), "../run.sh");
            await assert.rejects(sb.files.uploadDir(join(here, "nowhere"), "x"), { code: "INVALID_REQUEST" });
            await assert.rejects(sb.files.downloadDir("nowhere", join(here, "out")), FileNotFoundError);
        } finally {
            rmSync(here, { recursive: true });
        }
    },

    async "a watch tells what happens"(sb) {
        await sb.files.makeDir("watched");
        await using watch = await sb.files.watch("watched", { recursive: true });
        await sb.commands.run("echo x > watched/made");
        for await (const event of watch) {
            // Over a bad line some may be missing, which `overflow` reports.
            if (event.type === "overflow" || (event.type === "write" && event.path === "made")) {
                break;
            }
        }
        await assert.rejects(sb.files.watch("nowhere"), FileNotFoundError);
    },

    async "a terminal shows what is typed, and is joined again"(sb) {
        const terminal = await sb.pty.create({ cols: 100, rows: 30, shell: "/bin/sh" });
        // Only one, despite retries.
        assert.deepEqual((await sb.pty.list()).map((one) => one.ptyID), [terminal.ptyID]);
        let seen = "";
        const reading = (async () => {
            for await (const data of terminal) {
                seen += new TextDecoder().decode(data);
            }
        })();
        // Keys that are on their way when the line breaks are lost.
        await until(async () => {
            await terminal.write("echo =$((6*7))=\n");
            return seen.includes("=42=");
        });
        await terminal.resize(90, 20);
        const other = await sb.pty.connect(terminal.ptyID);
        for await (const data of other) {
            if (new TextDecoder().decode(data).includes("=42=")) {
                break;
            }
        }
        other.close();
        assert.ok((await sb.pty.list()).some((one) => one.ptyID === terminal.ptyID && one.cols === 90 && one.rows === 20));
        await terminal.kill();
        await terminal.wait({ timeout: 60 });
        await reading;
        await assert.rejects(terminal.write("x"), { code: "TERMINAL_NOT_FOUND" });
    },

    async "a block ends the terminal that was made for it, and no other"(sb) {
        const there = async () => (await sb.pty.list()).map((one) => one.ptyID);
        {
            await using terminal = await sb.pty.create({ shell: "/bin/cat" });
            {
                await using joined = await sb.pty.connect(terminal.ptyID);
                assert.equal(joined.ptyID, terminal.ptyID);
            }
            assert.deepEqual(await there(), [terminal.ptyID]);
        }
        assert.deepEqual(await there(), []);
    },

    async "a local port leads to a server inside"(sb) {
        await sb.files.write("www/index.html", "from inside");
        await sb.commands.run("cd www && exec python3 -m http.server 8000 --bind 127.0.0.1", { background: true });
        await until(async () => (await sb.ports()).some(({ port }) => port === 8000));
        await using forward = await sb.forward(8000);
        const page = await insist(async () => await (await fetch(`http://127.0.0.1:${forward.port}/`)).text());
        assert.equal(page, "from inside");
        await assert.rejects(sb.forward(0), { code: "INVALID_REQUEST" });
        await using unused = await sb.forward(9);
        assert.equal(unused.lastError, undefined);
        // Over a bad line the connection may be the first error.
        await until(async () => {
            await assert.rejects(fetch(`http://127.0.0.1:${unused.port}/`));
            return /ports\/9\/tunnel|port 9/.test(String(unused.lastError));
        });
    },

    async "its life can be changed"(sb) {
        assert.equal((await sb.pause()).state, "paused");
        assert.equal((await sb.resume({ timeout: 500 })).state, "running");
        const left = Date.parse((await sb.setTimeout(1000)).endAt ?? "") - Date.now();
        assert.ok(left > 900_000 && left < 1_100_000, String(left));
        await sb.files.write("stays", "here");
        assert.equal((await sb.stop()).state, "stopped");
        await assert.rejects(sb.commands.run("true"), { code: "SANDBOX_STOPPED" });
        assert.equal((await sb.start()).state, "running");
        assert.equal(await sb.files.read("stays"), "here");
        assert.deepEqual((await sb.update({ metadata: { a: "b" } })).metadata, { a: "b" });
        await sb.commands.run("echo logged");
        const lines: string[] = [];
        for await (const line of sb.logs()) {
            lines.push("text" in line ? line.text : line.stream);
        }
        assert.ok(lines.includes("logged\n"), lines.join("|"));
        assert.ok((await sb.metrics()).length > 0);
    },
};

/** Retries work that opens its own connection through a bad line. */
async function insist<T>(work: () => Promise<T>): Promise<T> {
    for (;;) {
        try {
            return await work();
        } catch (error) {
            if (!(error instanceof TypeError)) {
                throw error;
            }
        }
    }
}

/** Waits until the condition holds, at most a minute. */
export async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
    for (const end = Date.now() + 60_000; !(await condition()); ) {
        assert.ok(Date.now() < end, "the condition did not hold in time");
        await new Promise((done) => setTimeout(done, 20));
    }
}

async function md5(text: string): Promise<string> {
    const { createHash } = await import("node:crypto");
    return createHash("md5").update(text).digest("hex");
}
