/** Deadlines, idle timeouts and retry delays. */

import { TimeoutError } from "./error.js";

/** Aborts an operation after a timeout, or when the caller's signal is aborted. */
export class Deadline {
    readonly #controller = new AbortController();
    readonly #timer: ReturnType<typeof setTimeout> | undefined;
    readonly #outer: AbortSignal | undefined;
    readonly #abort = () => this.#controller.abort(this.#outer?.reason);

    /** `what` names the operation in the error; 0 seconds is no timeout. */
    constructor(what: string, seconds: number, outer?: AbortSignal) {
        this.#outer = outer;
        if (outer?.aborted) {
            this.#abort();
        }
        outer?.addEventListener("abort", this.#abort);
        if (seconds > 0 && Number.isFinite(seconds)) {
            const over = () => {
                const message = `${what}: not done after ${seconds} s`;
                this.#controller.abort(new TimeoutError(message, "use a longer timeout, or check whether the server is overloaded"));
            };
            // Timers cannot count further than 2^31 milliseconds.
            this.#timer = setTimeout(over, Math.min(seconds * 1000, 2 ** 31 - 1));
        }
    }

    /** Aborted at the deadline. */
    get signal(): AbortSignal {
        return this.#controller.signal;
    }

    /** Throws if the deadline has passed. */
    check(): void {
        this.signal.throwIfAborted();
    }

    /** Waits, or throws if the deadline comes first. */
    async sleep(milliseconds: number): Promise<void> {
        let timer: ReturnType<typeof setTimeout> | undefined;
        const over = new Promise((done) => {
            timer = setTimeout(done, milliseconds);
        });
        try {
            await this.race(over);
        } finally {
            // A pending timer would keep the process alive.
            clearTimeout(timer);
        }
    }

    /** Waits for a promise, or throws if the deadline comes first. */
    async race<T>(work: Promise<T>): Promise<T> {
        this.check();
        let abort = () => {};
        const over = new Promise<never>((_, fail) => {
            abort = () => fail(this.signal.reason);
            this.signal.addEventListener("abort", abort);
        });
        try {
            return await Promise.race([work, over]);
        } finally {
            this.signal.removeEventListener("abort", abort);
        }
    }

    /** Releases the timer and the listener. */
    end(): void {
        clearTimeout(this.#timer);
        this.#outer?.removeEventListener("abort", this.#abort);
    }
}

/** Idle timeout in milliseconds: servers ping event streams every 15 s and WebSockets every 30 s. */
export const idleTimeout = { milliseconds: 45_000 };

/** Delays between attempts, until there was no progress for the given time in milliseconds. */
export class RetryPolicy {
    readonly #milliseconds: number;
    #since: number | undefined;
    #tries = 0;

    constructor(milliseconds: number) {
        this.#milliseconds = milliseconds;
    }

    /** Resets the delays and the time limit after progress. */
    progress(): void {
        [this.#since, this.#tries] = [undefined, 0];
    }

    /** Waits before the next attempt. Returns whether there is one. */
    async pause(): Promise<boolean> {
        this.#since ??= Date.now();
        await new Promise((done) => setTimeout(done, backoff(Math.min(this.#tries++, 2))));
        return Date.now() - this.#since < this.#milliseconds;
    }
}

/** Aborts a stream when its idle timeout expires or the caller's signal is aborted. */
export class IdleWatchdog {
    readonly #controller = new AbortController();
    readonly #milliseconds: number;
    #timer: ReturnType<typeof setTimeout> | undefined;
    /** Aborted when the timeout expires, which starts with the first reset. */
    readonly signal: AbortSignal;

    constructor(milliseconds: number, outer?: AbortSignal) {
        this.#milliseconds = milliseconds;
        this.signal = outer ? AbortSignal.any([outer, this.#controller.signal]) : this.#controller.signal;
    }

    /** Restarts the timeout, after data arrived. */
    reset(): void {
        clearTimeout(this.#timer);
        this.#timer = setTimeout(() => this.#controller.abort(), this.#milliseconds);
    }

    /** Whether the timeout expired. */
    get expired(): boolean {
        return this.#controller.signal.aborted;
    }

    /** Ends the watchdog and aborts its signal. */
    end(): void {
        clearTimeout(this.#timer);
        this.#controller.abort();
    }
}

/** The delay before the next attempt in milliseconds: exponential backoff with jitter. */
export function backoff(tries: number): number {
    return Math.min(50 * 2 ** tries, 2000) * (0.5 + Math.random() / 2);
}
