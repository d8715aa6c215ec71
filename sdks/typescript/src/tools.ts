/** Tools for models that call functions: what they are told, and what a call does in a sandbox. */

import { AtollError } from "./error.js";
import type { Sandbox } from "./sandbox.js";

/** A tool, as a model is told of it; `parameters` is a JSON schema. */
export interface ToolSchema {
    name: string;
    description: string;
    parameters: {
        type: "object";
        properties: Record<string, { type: string; description: string; enum?: string[]; minimum?: number }>;
        required: string[];
        additionalProperties: false;
    };
}

/** A call, as a model makes it. */
export interface ToolCall {
    name: string;
    /** An object, or the JSON of one. */
    arguments: unknown;
}

type Fields = Record<string, unknown>;

interface Tool {
    schema: ToolSchema;
    run(sandbox: Sandbox, fields: Fields): Promise<string>;
}

/** How much text a model is given at most. */
const MOST = 30_000;

/** What each language is run by; the code is its input. */
const LANGUAGES: Record<string, [string, ...string[]]> = {
    python: ["python3", "-"],
    javascript: ["node", "-"],
    bash: ["bash", "-s"],
};

function tool(name: string, description: string, properties: ToolSchema["parameters"]["properties"], required: string[], run: Tool["run"]): Tool {
    return { schema: { name, description, parameters: { type: "object", properties, required, additionalProperties: false } }, run };
}

const PATH = { type: "string", description: "Absolute, or relative to the home directory." };
const SECONDS = { type: "number", description: "When it is ended, in seconds; 60 if nothing is said.", minimum: 1 };

const TOOLS: Tool[] = [
    tool(
        "read_file",
        "Read a text file of the sandbox, or some of its lines.",
        {
            path: PATH,
            start_line: { type: "integer", description: "The first line, counted from 1.", minimum: 1 },
            end_line: { type: "integer", description: "The last line.", minimum: 1 },
        },
        ["path"],
        async (sandbox, { path, start_line, end_line }) => {
            const text = await sandbox.files.read(path as string);
            if (start_line === undefined && end_line === undefined) {
                return text;
            }
            const lines = text.split("\n");
            return lines.slice(Number(start_line ?? 1) - 1, Number(end_line ?? lines.length)).join("\n");
        },
    ),
    tool(
        "write_file",
        "Write a text file of the sandbox; missing directories are made, and a file that is there is replaced.",
        { path: PATH, content: { type: "string", description: "All of it." } },
        ["path", "content"],
        async (sandbox, { path, content }) => {
            const file = await sandbox.files.write(path as string, content as string);
            return `${file.path} has ${file.size} bytes`;
        },
    ),
    tool(
        "execute_code",
        "Run a program in the sandbox; answers with its exit code, standard output and standard error.",
        {
            language: { type: "string", description: "What the code is written in.", enum: Object.keys(LANGUAGES) },
            code: { type: "string", description: "The whole program." },
            timeout: SECONDS,
        },
        ["language", "code"],
        async (sandbox, { language, code, timeout }) => {
            const [program, ...args] = LANGUAGES[language as string] ?? ["false"];
            const options = { args, stdin: code as string, timeout: timeout as number | undefined };
            return shown(await sandbox.commands.run(program, options));
        },
    ),
    tool(
        "bash",
        "Run a command line in the sandbox; answers with its exit code, standard output and standard error.",
        {
            command: { type: "string", description: "A line for bash." },
            cwd: { type: "string", description: "Where; the home directory if nothing is said." },
            timeout: SECONDS,
        },
        ["command"],
        async (sandbox, { command, cwd, timeout }) => {
            const args = ["-c", command as string];
            const options = { args, cwd: cwd as string | undefined, timeout: timeout as number | undefined };
            return shown(await sandbox.commands.run("bash", options));
        },
    ),
];

function shown(result: { exitCode: number; stdout: string; stderr: string; timedOut: boolean }): string {
    const parts = [`exit code ${result.exitCode}${result.timedOut ? " (its time was up)" : ""}`];
    for (const name of ["stdout", "stderr"] as const) {
        if (result[name] !== "") {
            parts.push(`${name}:\n${result[name]}`);
        }
    }
    return parts.join("\n");
}

/** What is wrong with the arguments of a call; nothing if they fit. */
function fault(schema: ToolSchema, fields: Fields): string | undefined {
    const { properties, required } = schema.parameters;
    for (const name of required) {
        if (fields[name] === undefined) {
            return `${name} is missing`;
        }
    }
    for (const [name, value] of Object.entries(fields)) {
        const known = Object.hasOwn(properties, name) ? properties[name] : undefined;
        if (!known) {
            return `${name} is not known; there are ${Object.keys(properties).join(", ")}`;
        }
        const fits = known.type === "string" ? typeof value === "string" : known.type === "integer" ? Number.isInteger(value) : typeof value === "number";
        if (!fits) {
            return `${name} must be a ${known.type}`;
        }
        if (known.minimum !== undefined && (value as number) < known.minimum) {
            return `${name} must be at least ${known.minimum}`;
        }
        if (known.enum && !known.enum.includes(value as string)) {
            return `${name} must be one of ${known.enum.join(", ")}`;
        }
    }
    return undefined;
}

/**
 * The tools `read_file`, `write_file`, `execute_code` and `bash`, in the two forms in which models are told of tools: `function` wraps each as
 * `{type: "function", function: {name, description, parameters}}`, `input_schema` is `{name, description, input_schema}`.
 */
export function toolSchemas(form: "function"): { type: "function"; function: ToolSchema }[];
export function toolSchemas(form: "input_schema"): (Omit<ToolSchema, "parameters"> & { input_schema: ToolSchema["parameters"] })[];
export function toolSchemas(form: "function" | "input_schema"): object[] {
    return TOOLS.map(({ schema }) => {
        const { parameters, ...rest } = structuredClone(schema);
        return form === "function" ? { type: "function", function: { ...rest, parameters } } : { ...rest, input_schema: parameters };
    });
}

/** Does what a model asks for; the text to give it. What is wrong with a call is told to the model too; what is wrong with the server is thrown. */
export async function callTool(sandbox: Sandbox, call: ToolCall): Promise<string> {
    const found = TOOLS.find(({ schema }) => schema.name === call.name);
    if (!found) {
        return `error: there is no tool ${call.name}; there are ${TOOLS.map(({ schema }) => schema.name).join(", ")}`;
    }
    let fields: unknown;
    try {
        fields = typeof call.arguments === "string" ? JSON.parse(call.arguments) : call.arguments;
    } catch {
        return "error: the arguments are not JSON";
    }
    if (typeof fields !== "object" || fields === null || Array.isArray(fields)) {
        return "error: the arguments are not an object";
    }
    const wrong = fault(found.schema, fields as Fields);
    if (wrong) {
        return `error: ${wrong}`;
    }
    try {
        const text = await found.run(sandbox, fields as Fields);
        return text.length > MOST ? `${text.slice(0, MOST)}\n… (${text.length - MOST} more characters)` : text;
    } catch (error) {
        const own = ["validation", "not_found", "conflict"];
        if (error instanceof AtollError && own.includes(error.category) && error.code !== "SANDBOX_NOT_FOUND") {
            return `error: ${error.message}`;
        }
        throw error;
    }
}
