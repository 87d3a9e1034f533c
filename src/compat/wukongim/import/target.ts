// The Jindou node into which the data is imported. Retries a failed call up to seven times, which
// is safe because storing a line twice has no further effect.

import { isRecord } from "../stream-lane.ts";
import { reasonOf, SourceError, sleep } from "./source.ts";

const TIMEOUT_MS = 60_000;
const ATTEMPTS = 8;
const RETRY_MS = 500;
const CLOSED = 409;
const BODY_TOO_LARGE = 413;

export interface TargetOptions {
  readonly url: URL;
  /** Static API token or access token, or "" if the node needs no token. */
  readonly token: string;
}

interface RefusedLine {
  /** Line number, starting at 1. */
  readonly line: number;
  readonly code: string;
  readonly message: string;
}

interface LineCounts {
  readonly stored: number;
  readonly unchanged: number;
  readonly refused: readonly RefusedLine[];
}

export interface TargetChannel {
  readonly id: string;
  readonly type: number;
  /** A user of a personal channel, or "" for a group. */
  readonly uid: string;
}

interface TargetRange {
  readonly headSeq: number;
  /** Time of the newest message in Unix seconds, or 0 if it is unknown. */
  readonly headTimeS: number;
  readonly count: number;
  readonly checksum: string;
}

interface TargetState {
  /** True if the node removes old messages. */
  readonly hasLimits: boolean;
}

const LINE_TOO_LARGE: LineCounts = {
  ...{ stored: 0, unchanged: 0 },
  refused: [
    {
      ...{ line: 1, code: "too_large" },
      message: "The line has more bytes than the node's api.maxBodyBytes or a proxy allows",
    },
  ],
};

class BodyTooLarge extends Error {}

export class Target {
  readonly #options: TargetOptions;

  constructor(options: TargetOptions) {
    this.#options = options;
  }

  async open(): Promise<TargetState> {
    const state = recordOf(await this.#call("/admin/import/open", "{}"));
    return { hasLimits: Number(state.retention_s) > 0 || Number(state.max_channel_messages) > 0 };
  }

  async close(): Promise<void> {
    await this.#call("/admin/import/close", "{}");
  }

  /** Stores lines. Reports a line as refused if it alone is too large for a request body. */
  async store(lines: readonly string[]): Promise<LineCounts> {
    try {
      const reply = await this.#call("/admin/import", lines.join("\n"), "application/x-ndjson");
      return reply as unknown as LineCounts; // see docs/http.md
    } catch (error) {
      if (!(error instanceof BodyTooLarge)) throw error;
      if (lines.length === 1) return LINE_TOO_LARGE;
      const half = Math.ceil(lines.length / 2);
      const first = await this.store(lines.slice(0, half));
      const second = await this.store(lines.slice(half));
      const moved = second.refused.map((refusal) => ({ ...refusal, line: refusal.line + half }));
      return {
        stored: first.stored + second.stored,
        unchanged: first.unchanged + second.unchanged,
        refused: [...first.refused, ...moved],
      };
    }
  }

  /** Calls the node with a JSON body and returns the reply's JSON. */
  post(path: string, body: object): Promise<unknown> {
    return this.#call(path, JSON.stringify(body));
  }

  async range(channel: TargetChannel, fromSeq: number, toSeq: number): Promise<TargetRange> {
    const query = new URLSearchParams({
      channel_id: channel.id,
      channel_type: String(channel.type),
      uid: channel.uid,
      from_seq: String(fromSeq),
      to_seq: String(toSeq),
    });
    const { channel: range } = recordOf(await this.#call(`/admin/import?${query}`));
    const fields = recordOf(range);
    return {
      headSeq: Number(fields.head_seq),
      headTimeS: Number(fields.head_timestamp),
      count: Number(fields.count),
      checksum: String(fields.checksum),
    };
  }

  async #call(path: string, body?: string, type = "application/json"): Promise<unknown> {
    for (let attempt = 1; ; attempt++) {
      const reply = await this.#exchange(path, body, type);
      if (reply.status === 200 && reply.body !== undefined) return reply.body;
      if (reply.status === BODY_TOO_LARGE) throw new BodyTooLarge();
      const mayPass = reply.status === 0 || reply.status === 429 || reply.status >= 500;
      if (!mayPass || attempt === ATTEMPTS) throw this.#problem(path, reply);
      await sleep(RETRY_MS * 2 ** (attempt - 1));
    }
  }

  async #exchange(path: string, body: string | undefined, type: string) {
    const { url, token } = this.#options;
    const prefix = url.pathname.replace(/\/$/, "");
    try {
      const reply = await fetch(new URL(prefix + path, url), {
        method: body === undefined ? "GET" : "POST",
        headers: {
          ...(token === "" ? {} : { authorization: `Bearer ${token}` }),
          ...(body === undefined ? {} : { "content-type": type }),
        },
        ...(body === undefined ? {} : { body }),
        redirect: "error",
        signal: AbortSignal.timeout(TIMEOUT_MS),
      });
      return { status: reply.status, body: parsed(await reply.text()) };
    } catch (error) {
      return { status: 0, body: { error: reasonOf(error, TIMEOUT_MS) } };
    }
  }

  #problem(path: string, { status, body }: { readonly status: number; readonly body: unknown }) {
    const { url } = this.#options;
    const { error, msg } = recordOf(body);
    const unexplained =
      status === 200 ? "its response is not JSON" : `it responds with the status ${status}`;
    const reason = String(error ?? msg ?? unexplained);
    if (status === 401 || status === 403)
      return new SourceError(
        `The node at ${url.origin} rejects the credential: ${reason}. Set JINDOU_TOKEN to its api.token, or JINDOU_TOKEN_FILE to a file that contains it.`,
      );
    if (status === CLOSED)
      return new SourceError(`The node at ${url.origin} rejects the call: ${reason}.`);
    return new SourceError(
      `The node at ${url.origin} cannot be called: ${reason} (${path}). Repeat the command: it continues where it stopped.`,
    );
  }
}

/**
 * Returns the JSON of a reply, or `undefined` if it is not JSON. For example, a 401 in the
 * `wukongim` dialect has an empty body.
 */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function recordOf(value: unknown): Readonly<Record<string, unknown>> {
  return isRecord(value) ? value : {};
}
