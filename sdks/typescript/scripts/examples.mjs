// Writes the examples of README.md to tests/examples, each with its expected output: the comments after or below its `console.log` calls.
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";

const here = new URL("..", import.meta.url);
const to = new URL("tests/examples/", here);
rmSync(to, { recursive: true, force: true });
mkdirSync(to);
const blocks = [...readFileSync(new URL("README.md", here), "utf8").matchAll(/^```ts\n(.*?)^```$/gms)];
blocks.forEach(([, code], index) => {
    const lines = code.split("\n");
    const prints = lines.flatMap((line) => {
        const output = line.match(/console\.log.*; \/\/ (.*)$/) ?? line.match(/^\/\/ (.*)$/);
        return output ? [output[1]] : [];
    });
    const source = code.replace('"atoll-sdk"', '"../../src/node.js"');
    writeFileSync(new URL(`${index + 1}.ts`, to), `${source}\nexport {};\n`);
    writeFileSync(new URL(`${index + 1}.json`, to), JSON.stringify(prints));
});
