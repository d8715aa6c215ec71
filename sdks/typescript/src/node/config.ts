/** Server URL and API key from `ATOLL_URL` and `ATOLL_API_KEY`, or from a profile of the user. */

import { readFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";

import { invalid } from "../failure.js";
import type { ServerLocation } from "../platform.js";

const variable = (name: string): string | undefined => process.env[name] || undefined;

export function place(profile: string | undefined): ServerLocation {
    const [url, apiKey] = [variable("ATOLL_URL"), variable("ATOLL_API_KEY")];
    if (profile === undefined && url !== undefined) {
        return { url, apiKey };
    }
    const file = join(variable("XDG_CONFIG_HOME") ?? join(homedir(), ".config"), "atoll", "config.toml");
    const found = profileOf(file, profile);
    return { url: found.url, apiKey: profile === undefined ? (apiKey ?? found.apiKey) : found.apiKey };
}

function profileOf(file: string, requested: string | undefined): ServerLocation {
    let text: string;
    try {
        text = readFileSync(file, "utf8");
    } catch (error) {
        if (requested === undefined && (error as NodeJS.ErrnoException).code === "ENOENT") {
            return {};
        }
        throw invalid("profile", `${file} cannot be read: ${(error as Error).message}`, "create it with `atoll login`");
    }
    const { chosen, profiles } = parseProfiles(text, file);
    const name = requested ?? chosen;
    if (name === undefined) {
        return {};
    }
    const found = profiles.get(name);
    if (!found) {
        const known = [...profiles.keys()].join(", ") || "none";
        throw invalid("profile", `${file} has no profile ${JSON.stringify(name)}; there are: ${known}`, "use one of them, or create it with `atoll login`");
    }
    return { url: found.url, apiKey: found.api_key };
}

/** Parses the subset of TOML that the file uses: `default`, and `url` and `api_key` of each `[profiles.NAME]`. Other lines are ignored. */
export function parseProfiles(text: string, file: string): { chosen: string | undefined; profiles: Map<string, Record<string, string>> } {
    const profiles = new Map<string, Record<string, string>>();
    let chosen: string | undefined;
    let table: Record<string, string> | undefined;
    let top = true;
    for (const [number, line] of text.split(/\r?\n/).entries()) {
        const header = line.match(/^\s*\[\s*(?:(profiles)\s*\.\s*(?:"([^"]+)"|'([^']+)'|([\w-]+)))?[^\]]*\]\s*(?:#.*)?$/);
        if (header) {
            top = false;
            table = undefined;
            const name = header[2] ?? header[3] ?? header[4];
            if (header[1] && name) {
                table = {};
                profiles.set(name, table);
            }
            continue;
        }
        const key = line.match(/^\s*(default|url|api_key)\s*=\s*(.*?)\s*$/);
        if (!key?.[1] || (key[1] === "default" ? !top : !table)) {
            continue;
        }
        const value = key[2]?.match(/^(?:"((?:[^"\\]|\\.)*)"|'([^']*)')\s*(?:#.*)?$/);
        if (!value) {
            throw invalid("profile", `${file}, line ${number + 1}: ${key[1]} is not a string`, 'write it as name = "value"');
        }
        const unquoted = value[2] ?? (JSON.parse(`"${value[1]}"`) as string);
        if (key[1] === "default") {
            chosen = unquoted;
        } else if (table) {
            table[key[1]] = unquoted;
        }
    }
    return { chosen, profiles };
}
