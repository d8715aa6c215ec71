// Writes src/generated from the API's description: the types of requests and responses, and an error class for each
// code; and the function-calling tools from sdks/tools.json. `--check` writes nothing and fails if a committed file is out of date.
import { readFileSync, writeFileSync } from "node:fs";

const here = new URL("..", import.meta.url);
const api = JSON.parse(readFileSync(new URL("../../openapi/v1.json", here), "utf8"));
const meanings = readFileSync(new URL("../../docs/reference/errors.md", here), "utf8");
const notice = (from) => `// Generated from ${from} by scripts/generate.mjs: do not change it here.\n`;

const comment = (text, indent) => (text ? `${indent}/** ${text.replaceAll("*/", "* /").replace(/\s+/g, " ")} */\n` : "");

/** The type of a schema. */
function type(schema, indent) {
    if (schema.$ref) return schema.$ref.split("/").at(-1);
    if (schema.enum) return schema.enum.map((word) => JSON.stringify(word)).join(" | ");
    if (schema.allOf) return schema.allOf.map((part) => type(part, indent)).join(" & ");
    const choice = schema.oneOf ?? schema.anyOf;
    if (choice) return choice.map((part) => type(part, indent)).join(" | ");
    if (Array.isArray(schema.type)) {
        return schema.type.map((one) => type({ ...schema, type: one }, indent)).join(" | ");
    }
    switch (schema.type) {
        case "string":
        case "boolean":
        case "null":
            return schema.type;
        case "integer":
        case "number":
            return "number";
        case "array": {
            const item = type(schema.items, indent);
            return /[|&]/.test(item) ? `(${item})[]` : `${item}[]`;
        }
        case "object":
            return object(schema, indent);
        default:
            return "unknown";
    }
}

function object(schema, indent) {
    const fields = Object.entries(schema.properties ?? {});
    if (fields.length === 0) {
        const values = schema.additionalProperties;
        if (values === false) return "Record<string, never>";
        return `Record<string, ${values ? type(values, indent) : "unknown"}>`;
    }
    const lines = fields.map(([name, field]) => {
        const needed = (schema.required ?? []).includes(name);
        const description = field.description ?? field.oneOf?.find((part) => part.description)?.description;
        const inner = `${indent}    `;
        return `${comment(description, inner)}${inner}${name}${needed ? "" : "?"}: ${type(field, inner)};\n`;
    });
    return `{\n${lines.join("")}${indent}}`;
}

function types() {
    const all = Object.entries(api.components.schemas).filter(([name]) => name !== "BinaryBody");
    const made = all.map(([name, schema]) => `${comment(schema.description, "")}export type ${name} = ${type(schema, "")};\n`);
    return `${notice("openapi/v1.json")}\n${made.join("\n")}`;
}

/** `FILE_NOT_FOUND` is `FileNotFoundError`. */
function className(code) {
    return `${code.split("_").map((word) => word[0] + word.slice(1).toLowerCase()).join("")}Error`;
}

function errors() {
    const codes = api.components.schemas.Code.enum;
    const rows = new Map(
        [...meanings.matchAll(/^\| `([A-Z_]+)` \| (\d+) \| \d+ \| \d+ \| (.*?) \|/gm)].map(([, code, status, meaning]) => [code, { status, meaning }]),
    );
    const classes = codes.map((code) => {
        const row = rows.get(code);
        if (!row) throw new Error(`${code} has no meaning in docs/reference/errors.md`);
        const base = row.status === "401" ? "UnauthenticatedError" : "AtollError";
        return `${comment(row.meaning, "")}export class ${className(code)} extends ${base} {}\n`;
    });
    const table = codes.map((code) => `    ${code}: ${className(code)},\n`);
    return [
        notice("openapi/v1.json and docs/reference/errors.md"),
        'import { AtollError, UnauthenticatedError } from "../error.js";\n',
        ...classes,
        `/** The class of each code. */\nexport const errorClasses = {\n${table.join("")}} as const;\n`,
    ].join("\n");
}

function tools() {
    const data = JSON.parse(readFileSync(new URL("../tools.json", here), "utf8"));
    return `${notice("sdks/tools.json")}\nexport const tools = ${JSON.stringify(data, null, 4)} as const;\n`;
}

let stale = false;
for (const [name, text] of [["api.ts", types()], ["errors.ts", errors()], ["tools.ts", tools()]]) {
    const file = new URL(`src/generated/${name}`, here);
    if (process.argv.includes("--check")) {
        if (readFileSync(file, "utf8") === text) continue;
        console.error(`src/generated/${name} is not current: run \`npm run generate\``);
        stale = true;
    } else {
        writeFileSync(file, text);
    }
}
process.exitCode = stale ? 1 : 0;
