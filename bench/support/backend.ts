// Registers users and creates groups over the HTTP API before a bench runs, with a limited number
// of parallel calls.

import { Agent, request } from "node:http";
import type { Server } from "./servers.ts";

/** Token of every user in a bench. */
export const TOKEN = "bench-token";

const CONCURRENCY = 64;
const MAX_SUBSCRIBERS = 10_000;

export class Backend {
  readonly #port: number;
  readonly #host: string;
  readonly #token: string;
  readonly #agent: Agent;

  constructor(port: number, { host = "127.0.0.1", token = "" } = {}) {
    this.#port = port;
    this.#host = host;
    this.#token = token;
    this.#agent = new Agent({ keepAlive: true, maxSockets: CONCURRENCY });
  }

  /** Registers the app device of each user. */
  async registerUsers(uids: readonly string[]): Promise<void> {
    const waiting = [...uids];
    const work = async () => {
      for (let uid = waiting.pop(); uid !== undefined; uid = waiting.pop())
        await this.post("/user/token", {
          uid,
          token: TOKEN,
          device_flag: 0,
          device_level: 0,
        });
    };
    await Promise.all(Array.from({ length: CONCURRENCY }, work));
  }

  /** Creates a group of up to 10,000 members. */
  async createGroup(id: string, subscribers: readonly string[]): Promise<void> {
    if (subscribers.length > MAX_SUBSCRIBERS)
      throw new RangeError(`a bench group can have at most ${MAX_SUBSCRIBERS} members`);
    await this.post("/channel", {
      channel_id: id,
      channel_type: 2,
      subscribers,
    });
  }

  /** Sends a POST and resolves with the body. Rejects if the status is not 200. */
  post(path: string, body: unknown): Promise<string> {
    const text = JSON.stringify(body);
    return new Promise((resolve, reject) => {
      const call = request(
        {
          host: this.#host,
          port: this.#port,
          path,
          method: "POST",
          agent: this.#agent,
          headers: {
            "Content-Type": "application/json",
            "Content-Length": Buffer.byteLength(text),
            ...(this.#token !== "" && { token: this.#token }),
          },
        },
        (response) => {
          let answer = "";
          response.setEncoding("utf8");
          response.on("data", (chunk) => {
            answer += chunk;
          });
          response.on("end", () => {
            if (response.statusCode === 200) resolve(answer);
            else reject(new Error(`${path} answered ${response.statusCode}: ${answer}`));
          });
        },
      );
      call.on("error", reject);
      call.end(text);
    });
  }

  close(): void {
    this.#agent.destroy();
  }
}

/** Returns a `Backend` for a server, which may run on another machine and need a token. */
export function backendOf({
  apiPort,
  host,
  apiToken,
}: Pick<Server, "apiPort" | "host" | "apiToken">): Backend {
  return new Backend(apiPort, {
    ...(host !== undefined && { host }),
    ...(apiToken !== undefined && { token: apiToken }),
  });
}
