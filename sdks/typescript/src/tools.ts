/** Tools for models that call functions: what they are told, and what a call does in a sandbox. */

import type { CommandResult } from "./command-handle.js";
import { AtollError, CommandTimeoutError } from "./error.js";
import { tools } from "./generated/tools.js";
import type { Sandbox } from "./sandbox.js";

/** A tool, as a model is told of it; `parameters` is a JSON schema. */
export interface ToolSchema {
    /** What it is called by. */
    name: string;
    /** What it does, for the model. */
    description: string;
    /** What a call takes. */
    parameters: {
        type: "object";
        properties: Record<string, { type: string; description: string; enum?: string[]; minimum?: number }>;
        required: string[];
        additionalProperties: false;
    };
}

/** A call, as a model makes it. */
export interface ToolCall {
    /** Which tool. */
    name: string;
    /** An object, or the JSON of one. */
    arguments: unknown;
}

type Fields = Record<string, unknown>;

const SCHEMAS = tools.schemas as unknown as ToolSchema[];

/** Does what a call asks for; its fields are as described. */
async function run(sandbox: Sandbox, name: string, fields: Fields): Promise<string> {
    const text = (field: string) => fields[field] as string;
    const number = (field: string) => fields[field] as number | undefined;
    const options = { cwd: fields.cwd as string | undefined, timeout: number("timeout") };
    switch (name) {
        case "read_file":
            return lines(await sandbox.files.read(text("path")), number("start_line"), number("end_line"));
        case "write_file": {
            const file = await sandbox.files.write(text("path"), text("content"));
            return `wrote ${file.size} bytes to ${file.path}`;
        }
        case "execute_code": {
            const [program, ...args] = tools.languages[(fields.language ?? "python") as keyof typeof tools.languages];
            return outcome(await ended(sandbox.commands.run(program, { ...options, args, stdin: text("code") })));
        }
        default:
            return outcome(await ended(sandbox.commands.run("bash", { ...options, args: ["-c", text("command")] })));
    }
}

/** The result of a command, also of one that was ended by its timeout. */
async function ended(running: Promise<CommandResult>): Promise<CommandResult> {
    try {
        return await running;
    } catch (error) {
        if (error instanceof CommandTimeoutError) {
            return error.result;
        }
        throw error;
    }
}

/** Some lines of a text, or all of it. */
function lines(text: string, first: number | undefined, last: number | undefined): string {
    const some = first === undefined && last === undefined ? text : text.split("\n").slice((first ?? 1) - 1, last).join("\n");
    return some || "[empty]";
}

/** What a command wrote, and how it ended if that is worth a word. */
function outcome(result: CommandResult): string {
    const parts = [result.stdout, result.stderr && `[stderr]\n${result.stderr}`];
    if (result.timedOut) {
        parts.push("[it was ended because it took too long]");
    } else if (result.oomKilled) {
        parts.push(`[exit code ${result.exitCode}: something was killed for want of memory]`);
    } else if (result.exitCode !== 0) {
        parts.push(`[exit code ${result.exitCode}]`);
    }
    const said = parts.filter((part) => part !== "").map((part) => part.replace(/\n+$/, ""));
    return said.join("\n") || "[no output]";
}

/** A text that is not too long: the middle of a longer one is left out. */
function short(text: string): string {
    const characters = text.length > tools.longest ? Array.from(text) : [];
    const left = characters.length - tools.longest;
    if (left <= 0) {
        return text;
    }
    const half = tools.longest / 2;
    return `${characters.slice(0, half).join("")}\n[${left} characters left out]\n${characters.slice(-half).join("")}`;
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
            return `${name} must be ${known.type === "integer" ? "an" : "a"} ${known.type}`;
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
    return SCHEMAS.map((schema) => {
        const { parameters, ...rest } = structuredClone(schema);
        return form === "function" ? { type: "function", function: { ...rest, parameters } } : { ...rest, input_schema: parameters };
    });
}

/**
 * Does what a model asks for; the text to give it. What the model did wrong is told to it too; what is wrong with the server or the sandbox is
 * thrown.
 */
export async function callTool(sandbox: Sandbox, call: ToolCall): Promise<string> {
    const schema = SCHEMAS.find(({ name }) => name === call.name);
    if (!schema) {
        return `error: there is no tool ${call.name}; there are ${SCHEMAS.map(({ name }) => name).join(", ")}`;
    }
    let given: unknown;
    try {
        given = typeof call.arguments === "string" ? JSON.parse(call.arguments) : call.arguments;
    } catch {
        return `error: the arguments of ${call.name} are not JSON`;
    }
    if (typeof given !== "object" || given === null || Array.isArray(given)) {
        return `error: the arguments of ${call.name} are not an object`;
    }
    // Nothing is as good as left out.
    const fields = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== null && value !== undefined));
    const wrong = fault(schema, fields);
    if (wrong) {
        return `error: ${wrong}`;
    }
    try {
        return short(await run(sandbox, call.name, fields));
    } catch (error) {
        if (error instanceof AtollError && modelsOwn(error)) {
            return `error: ${error.message}`;
        }
        throw error;
    }
}

/** Whether a failure is the model's own affair. */
function modelsOwn({ code, category }: AtollError): boolean {
    const { categories, codes, never } = tools.told as Record<"categories" | "codes" | "never", readonly string[]>;
    return (categories.includes(category) || codes.includes(code)) && !never.includes(code);
}
