// Writes docs/reference/typescript.md from the comments of the exported API. `--check` fails if the committed file is out of date.
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import ts from "typescript";

const here = new URL("..", import.meta.url);
const entry = fileURLToPath(new URL("src/index.ts", here));
const { options } = ts.parseJsonConfigFileContent(ts.readConfigFile(fileURLToPath(new URL("tsconfig.json", here)), ts.sys.readFile).config, ts.sys, fileURLToPath(here));
// Only syntax and comments are needed, so no library types are loaded.
const program = ts.createProgram([entry], { ...options, noLib: true, types: [] });
const checker = program.getTypeChecker();
const exported = checker.getExportsOfModule(checker.getSymbolAtLocation(program.getSourceFile(entry)));

const documentation = (symbol) => ts.displayPartsToString(symbol.getDocumentationComment(checker)).replace(/\s+/g, " ").trim();
const hidden = (node) => ts.getJSDocTags(node).some((tag) => tag.tagName.text === "internal");
const flat = (text) => text.replace(/\s+/g, " ").trim();

/** A declaration without its body and comments. */
function signature(node) {
    const file = node.getSourceFile();
    const end = node.body ? node.body.getStart(file) : node.getEnd();
    const text = file.text.slice(node.getStart(file), end).replace(/\/\*\*[\s\S]*?\*\//g, "");
    return flat(text).replace(/[;{]$/, "").replace(/^(export|readonly) /, "").replace(/^async (\*?)/, "$1").replace(/^static async (\*?)/, "static $1").trim();
}

/** The public members, each with its signatures. */
function members(declaration) {
    const shown = new Map();
    for (const member of declaration.members) {
        const flags = ts.getCombinedModifierFlags(member);
        const name = member.name;
        if (!name || ts.isPrivateIdentifier(name) || ts.isComputedPropertyName(name) || flags & ts.ModifierFlags.Private || hidden(member)) continue;
        const text = name.getText();
        const known = shown.get(text) ?? { signatures: [], comment: "" };
        // The implementation of overloads is not public.
        if (!(known.signatures.length > 0 && member.body)) known.signatures.push(signature(member));
        known.comment ||= documentation(checker.getSymbolAtLocation(name));
        shown.set(text, known);
    }
    return [...shown.values()];
}

/** Public names without a comment. */
const silent = [];

function list(owner, declaration) {
    const all = members(declaration);
    silent.push(...all.filter(({ comment }) => !comment).map(({ signatures }) => `${owner}: ${signatures[0]}`));
    return all.map(({ signatures, comment }) => `- ${signatures.map((one) => `\`${one}\``).join("<br>")}${comment ? `  \n  ${comment}` : ""}`);
}

function section(symbol) {
    const target = symbol.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(symbol) : symbol;
    const declaration = target.declarations[0];
    const lines = [`### ${symbol.name}`, "", documentation(target), ""];
    if (!documentation(target)) silent.push(symbol.name);
    if (ts.isClassDeclaration(declaration) || ts.isInterfaceDeclaration(declaration)) {
        const above = (declaration.heritageClauses ?? []).flatMap((clause) => clause.types.map((type) => flat(type.getText())));
        if (above.length > 0) lines.push(`Extends ${above.map((one) => `\`${one}\``).join(", ")}.`, "");
        lines.push(...list(symbol.name, declaration), "");
    } else if (ts.isFunctionDeclaration(declaration)) {
        const signatures = target.declarations.filter((one) => target.declarations.length === 1 || !one.body);
        lines.push(...signatures.map((one) => `- \`${signature(one).replace(/^function /, "")}\``), "");
    } else {
        lines.push("```ts", declaration.getText().replace(/^export /, ""), "```", "");
    }
    return lines.join("\n");
}

const own = (symbol) => {
    const target = symbol.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(symbol) : symbol;
    return { symbol, target, file: target.declarations?.[0]?.getSourceFile().fileName ?? "" };
};
const all = exported.map(own);
const codes = all.filter(({ file, target }) => file.endsWith("generated/errors.ts") && target.flags & ts.SymbolFlags.Class);
const rest = all.filter(({ file }) => !file.includes("/generated/"));
const isClass = ({ target }) => target.flags & ts.SymbolFlags.Class;
const isFunction = ({ target }) => target.flags & ts.SymbolFlags.Function;
const order = ["Sandbox", "Commands", "CommandHandle", "Files", "Watch", "Terminals", "Terminal", "Client", "AtollError"];
const rank = ({ symbol }) => (order.includes(symbol.name) ? order.indexOf(symbol.name) : order.length);
const sorted = (some) => some.sort((one, other) => rank(one) - rank(other) || one.symbol.name.localeCompare(other.symbol.name));

const text = [
    "# The TypeScript SDK",
    "",
    "<!-- Generated from the comments of sdks/typescript/src by scripts/reference.mjs: do not change it here. -->",
    "",
    "Quick start: [its README](../../sdks/typescript/README.md). Types of the API itself (`api.Sandbox`, `api.File`, …) are those of [openapi/v1.json](../../openapi/v1.json).",
    "",
    "## Classes",
    "",
    ...sorted(rest.filter(isClass)).map(({ symbol }) => section(symbol)),
    "## Functions",
    "",
    ...sorted(rest.filter(isFunction)).map(({ symbol }) => section(symbol)),
    "## Options and results",
    "",
    ...sorted(rest.filter((one) => !isClass(one) && !isFunction(one))).map(({ symbol }) => section(symbol)),
    "## Errors by code",
    "",
    "| class | meaning |",
    "|---|---|",
    ...codes.map(({ symbol, target }) => `| \`${symbol.name}\` | ${documentation(target).replaceAll("|", "\\|")} |`),
    "",
].join("\n");

const file = new URL("../../docs/reference/typescript.md", here);
silent.push(...codes.filter(({ target }) => !documentation(target)).map(({ symbol }) => symbol.name));
if (silent.length > 0) {
    console.error(`no comment says what these are:\n${silent.join("\n")}`);
    process.exitCode = 1;
} else if (process.argv.includes("--check")) {
    if (readFileSync(file, "utf8") !== text) {
        console.error("docs/reference/typescript.md is not current: run `npm run generate`");
        process.exitCode = 1;
    }
} else {
    writeFileSync(file, text);
}
