/** A time after which a call is given up, or its caller's wish to do so. */

import { TimeoutError } from "./error.js";

export class Deadline {
    readonly #controller = new AbortController();
    readonly #timer: ReturnType<typeof setTimeout> | undefined;
    readonly #outer: AbortSignal | undefined;
    readonly #abort = () => this.#controller.abort(this.#outer?.reason);

    /** `what` is not done after so many seconds; 0 is never. */
    constructor(what: string, seconds: number, outer?: AbortSignal) {
        this.#outer = outer;
        if (outer?.aborted) {
            this.#abort();
        }
        outer?.addEventListener("abort", this.#abort);
        if (seconds > 0 && Number.isFinite(seconds)) {
            const over = () => {
                const message = `${what}: not done after ${seconds} s`;
                this.#controller.abort(new TimeoutError(message, "give it more time, or see what the server does"));
            };
            // Timers cannot count further than 2^31 milliseconds.
            this.#timer = setTimeout(over, Math.min(seconds * 1000, 2 ** 31 - 1));
        }
    }

    /** Aborted when it is time. */
    get signal(): AbortSignal {
        return this.#controller.signal;
    }

    /** Throws if it is time. */
    check(): void {
        this.signal.throwIfAborted();
    }

    /** Waits so many milliseconds, or throws if the time comes first. */
    async sleep(milliseconds: number): Promise<void> {
        let timer: ReturnType<typeof setTimeout> | undefined;
        const over = new Promise((done) => {
            timer = setTimeout(done, milliseconds);
        });
        try {
            await this.race(over);
        } finally {
            // It would keep a program alive that is done.
            clearTimeout(timer);
        }
    }

    /** What somebody else does, unless the time comes first. */
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

    /** It is not needed any more. */
    end(): void {
        clearTimeout(this.#timer);
        this.#outer?.removeEventListener("abort", this.#abort);
    }
}

/** How long somebody may say nothing before they are gone, in milliseconds: servers say something every 15 s, and on WebSockets every 30. */
export const silence = { most: 45_000 };

/** Waits before something that broke off is tried again, until that has led nowhere for so many milliseconds. */
export class Patience {
    readonly #milliseconds: number;
    #since: number | undefined;
    #tries = 0;

    constructor(milliseconds: number) {
        this.#milliseconds = milliseconds;
    }

    /** It went on: the next failure is a first one. */
    progress(): void {
        [this.#since, this.#tries] = [undefined, 0];
    }

    /** Waits a moment; whether it makes sense to try again. */
    async pause(): Promise<boolean> {
        this.#since ??= Date.now();
        await new Promise((done) => setTimeout(done, backoff(Math.min(this.#tries++, 2))));
        return Date.now() - this.#since < this.#milliseconds;
    }
}

/** Gives a stream up that is silent for too long, or whose reader wishes so. */
export class Silence {
    readonly #controller = new AbortController();
    readonly #milliseconds: number;
    #timer: ReturnType<typeof setTimeout> | undefined;
    /** Aborted then; not before something was heard for the first time. */
    readonly signal: AbortSignal;

    constructor(milliseconds: number, outer?: AbortSignal) {
        this.#milliseconds = milliseconds;
        this.signal = outer ? AbortSignal.any([outer, this.#controller.signal]) : this.#controller.signal;
    }

    /** Something came. */
    heard(): void {
        clearTimeout(this.#timer);
        this.#timer = setTimeout(() => this.#controller.abort(), this.#milliseconds);
    }

    /** Whether it was silent for too long. */
    get lasted(): boolean {
        return this.#controller.signal.aborted;
    }

    /** It is not listened to any more. */
    end(): void {
        clearTimeout(this.#timer);
        this.#controller.abort();
    }
}

/** How long to wait before the next attempt: longer each time, and not all clients at once. */
export function backoff(tries: number): number {
    return Math.min(50 * 2 ** tries, 2000) * (0.5 + Math.random() / 2);
}
