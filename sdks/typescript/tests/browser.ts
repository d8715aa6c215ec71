/** What a page of another origin can do with the entry for browsers. A real browser runs this; what it throws fails the test. */

import { type CommandResult, type ConnectionOptions, FileNotFoundError, Sandbox, UnauthenticatedError, UnsupportedError } from "../src/browser.js";

function same(got: unknown, wanted: unknown): void {
    if (JSON.stringify(got) !== JSON.stringify(wanted)) {
        throw new Error(`${JSON.stringify(got)} is not ${JSON.stringify(wanted)}`);
    }
}

async function refused(work: Promise<unknown>, Class: new (...args: never[]) => Error): Promise<Error> {
    const error = await work.then(
        () => undefined,
        (error: unknown) => error,
    );
    if (!(error instanceof Class)) {
        throw new Error(`${error} is not a ${Class.name}`);
    }
    return error;
}

export async function check(at: ConnectionOptions): Promise<string> {
    await refused(Sandbox.create({ url: at.url ?? "" }), UnauthenticatedError);
    const sb = await Sandbox.create({ ...at, timeout: 300 });
    const done: CommandResult = await sb.commands.run("echo from a page; exit 3");
    same([done.exitCode, done.stdout], [3, "from a page\n"]);

    const pieces: string[] = [];
    await sb.commands.run("seq 3000", { onStdout: (text) => pieces.push(text) });
    same(pieces.join("").length, 13893);
    const handle = await sb.commands.run("cat", { background: true, openStdin: true });
    await handle.sendStdin("typed");
    await handle.closeStdin();
    let text = "";
    for await (const event of handle) {
        text += event.type === "stdout" ? event.text : "";
    }
    same(text, "typed");

    await sb.files.write("d/a", new Uint8Array([1, 2, 3]));
    same([...(await sb.files.read("d/a", { format: "bytes" }))], [1, 2, 3]);
    // A large one is looked at first, by a header that must be let through.
    await sb.commands.run("head -c 1000000 /dev/zero > big");
    let last = 0;
    await sb.files.read("big", { format: "blob", onProgress: ({ bytes }) => (last = bytes) });
    same(last, 1_000_000);
    const missing = (await refused(sb.files.read("none"), FileNotFoundError)) as FileNotFoundError;
    same(missing.requestId?.slice(0, 4), "req_");
    const watch = await sb.files.watch("d");
    await sb.files.remove("d/a");
    for await (const event of watch) {
        same(event, { type: "remove", path: "a" });
        break;
    }

    const terminal = await sb.pty.create({ shell: "/bin/sh" });
    await terminal.write("echo =$((6*7))=; exit\n");
    let screen = "";
    for await (const data of terminal) {
        screen += new TextDecoder().decode(data);
    }
    same(screen.includes("=42="), true);

    await refused(sb.forward(80), UnsupportedError);
    await refused(sb.files.uploadDir("/", "d"), UnsupportedError);
    let listed = 0;
    for await (const _ of Sandbox.list(at)) {
        listed++;
    }
    same(listed, 1);
    await sb.delete();
    return "all of it";
}
