/** The package: its entries for Node and browsers, and its types. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../../", import.meta.url));

const PROGRAM = `
import { type CommandResult, Sandbox, callTool, toolSchemas } from "atoll-sdk";

export async function main(): Promise<CommandResult> {
    await using sb = await Sandbox.create({ url: "http://127.0.0.1:1", timeout: 300 });
    const output: string = await callTool(sb, { name: "bash", arguments: { command: "true" } });
    for await (const event of await sb.commands.run("true", { background: true })) {
        console.log(event.type, output);
    }
    // @ts-expect-error: there is no such option.
    return await sb.commands.run("true", { no: "such" });
}

console.log(typeof Sandbox.create, toolSchemas("function").length);
const refused = await main().catch((error: Error) => error.name);
console.log(refused);
`;

test("the package can be packed, installed, compiled against and run", () => {
    const here = mkdtempSync(join(tmpdir(), "atoll-sdk-"));
    const env = { ...process.env, npm_config_cache: join(here, "cache"), npm_config_offline: "true", npm_config_update_notifier: "false" };
    const run = (directory: string, program: string, ...args: string[]): string => {
        const { status, stdout, stderr } = spawnSync(program, args, { cwd: directory, env, encoding: "utf8", timeout: 120_000 });
        assert.equal(status, 0, `${program} ${args.join(" ")}: ${stdout}${stderr}`);
        return stdout;
    };
    try {
        const [packed] = JSON.parse(run(root, "npm", "pack", "--json", "--silent", "--pack-destination", here)) as [{ filename: string; files: { path: string }[] }];
        const names = packed.files.map(({ path }) => path);
        assert.deepEqual(names.filter((name) => !/^dist\/.*\.(js|d\.ts)$/.test(name)).sort(), ["README.md", "package.json"]);
        const app = join(here, "app");
        mkdirSync(app);
        writeFileSync(join(app, "package.json"), '{"type": "module"}');
        run(app, "npm", "install", "--silent", "--no-audit", "--no-fund", join(here, packed.filename));
        writeFileSync(join(app, "main.ts"), PROGRAM);
        const lib = ["ES2023", "ESNext.Disposable", "DOM", "DOM.Iterable", "DOM.AsyncIterable"];
        // Without types of Node's: none of them is in what others see.
        const compilerOptions = { strict: true, target: "ES2022", module: "NodeNext", types: [], lib };
        writeFileSync(join(app, "tsconfig.json"), JSON.stringify({ compilerOptions, files: ["main.ts"] }));
        run(app, "node", join(root, "node_modules/typescript/bin/tsc"));
        for (const conditions of [[], ["--conditions", "browser"]]) {
            assert.equal(run(app, "node", ...conditions, "main.js"), "function 4\nConnectionError\n");
        }
        const entry = 'console.log(import.meta.resolve("atoll-sdk"))';
        const resolved = (...more: string[]) => run(app, "node", ...more, "--input-type=module", "-e", entry).trim();
        assert.match(resolved(), /dist\/node\.js$/);
        assert.match(resolved("--conditions", "browser"), /dist\/browser\.js$/);
    } finally {
        rmSync(here, { recursive: true });
    }
});
