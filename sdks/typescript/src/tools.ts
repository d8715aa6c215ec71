/** Function-calling tools for language models that run in a sandbox. */

import type { CommandResult } from "./command-handle.js";
import { AtollError, CommandTimeoutError } from "./error.js";
import { tools } from "./generated/tools.js";
import type { Sandbox } from "./sandbox.js";

/** The definition of a tool for a model; `parameters` is a JSON schema. */
export interface ToolSchema {
    /** The tool's name. */
    name: string;
    /** Description for the model. */
    description: string;
    /** JSON schema of the arguments. */
    parameters: {
        type: "object";
        properties: Record<string, { type: string; description: string; enum?: string[]; minimum?: number }>;
        required: string[];
        additionalProperties: false;
    };
}

/** A tool call of a model. */
export interface ToolCall {
    /** The tool's name. */
    name: string;
    /** The arguments, as an object or its JSON text. */
    arguments: unknown;
}

type Fields = Record<string, unknown>;

const SCHEMAS = tools.schemas as unknown as ToolSchema[];

/** Executes a call with valid arguments. */
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

/** Waits for a command. Returns the result also if its timeout ended it. */
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

/** Selects lines of a text. */
function lines(text: string, first: number | undefined, last: number | undefined): string {
    const some = first === undefined && last === undefined ? text : text.split("\n").slice((first ?? 1) - 1, last).join("\n");
    return some || "[empty]";
}

/** Formats a command's output, with its exit status unless the command succeeded. */
function outcome(result: CommandResult): string {
    const parts = [result.stdout, result.stderr && `[stderr]\n${result.stderr}`];
    if (result.timedOut) {
        parts.push("[it was ended because it took too long]");
    } else if (result.oomKilled) {
        parts.push(`[exit code ${result.exitCode}: something was killed for want of memory]`);
    } else if (result.exitCode !== 0) {
        parts.push(`[exit code ${result.exitCode}]`);
    }
    const shown = parts.filter((part) => part !== "").map((part) => part.replace(/\n+$/, ""));
    return shown.join("\n") || "[no output]";
}

/** Shortens a text by omitting its middle. */
function short(text: string): string {
    const characters = text.length > tools.longest ? Array.from(text) : [];
    const left = characters.length - tools.longest;
    if (left <= 0) {
        return text;
    }
    const half = tools.longest / 2;
    return `${characters.slice(0, half).join("")}\n[${left} characters left out]\n${characters.slice(-half).join("")}`;
}

/** Validates the arguments of a call. Returns the first mistake, or `undefined`. */
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
 * The tools `read_file`, `write_file`, `execute_code` and `bash`, in the two formats of model APIs: `function` wraps each as
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
 * Executes a tool call and returns its result as text for the model. Mistakes of the model are returned as text too; errors of the server or
 * the sandbox are thrown.
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
    // `null` counts as omitted.
    const fields = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== null && value !== undefined));
    const wrong = fault(schema, fields);
    if (wrong) {
        return `error: ${wrong}`;
    }
    try {
        return short(await run(sandbox, call.name, fields));
    } catch (error) {
        if (error instanceof AtollError && isModelError(error)) {
            return `error: ${error.message}`;
        }
        throw error;
    }
}

/** Whether an error is a mistake of the model, rather than one of the server or the sandbox. */
function isModelError({ code, category }: AtollError): boolean {
    const { categories, codes, never } = tools.returnedErrors as Record<"categories" | "codes" | "never", readonly string[]>;
    return (categories.includes(category) || codes.includes(code)) && !never.includes(code);
}
