// How long `commands.run("true")` takes over a warm client of the TypeScript SDK: JSON lines, times in milliseconds. The server is that
// of ATOLL_URL and ATOLL_API_KEY; the package must have been built (`npm run build` in sdks/typescript).
import { Sandbox } from "../../sdks/typescript/dist/node.js";

const [WARM, RUNS] = [50, Number(process.argv[2] ?? 1000)];

const sb = await Sandbox.create({ timeout: 600 });
try {
    await measure(WARM);
    const times = await measure(RUNS);
    const at = (part) => Number(times[Math.floor((times.length - 1) * part)].toFixed(3));
    console.log(JSON.stringify({ figure: "typescript_run", runs: RUNS, p50: at(0.5), p99: at(0.99) }));
} finally {
    await sb.delete();
}

/** The times of so many runs, the shortest first. */
async function measure(count) {
    const times = [];
    for (let run = 0; run < count; run++) {
        const begin = performance.now();
        await sb.commands.run("true");
        times.push(performance.now() - begin);
    }
    return times.sort((one, other) => one - other);
}
