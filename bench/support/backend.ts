// What a backend does before a bench can run: register users, make groups. Calls over HTTP like any
// backend, a bounded number at a time.

import { Agent, request } from "node:http";

/** Every user of a bench has it. */
export const TOKEN = "bench-token";

const CALLS_AT_ONCE = 64;
const SUBSCRIBERS_PER_CALL = 10_000;

export class Backend {
  readonly #port: number;
  readonly #agent: Agent;

  constructor(port: number) {
    this.#port = port;
    this.#agent = new Agent({ keepAlive: true, maxSockets: CALLS_AT_ONCE });
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
    await Promise.all(Array.from({ length: CALLS_AT_ONCE }, work));
  }

  /** A new group of up to 10 000 members. */
  async createGroup(id: string, subscribers: readonly string[]): Promise<void> {
    if (subscribers.length > SUBSCRIBERS_PER_CALL)
      throw new RangeError(`A group of a bench has up to ${SUBSCRIBERS_PER_CALL} members`);
    await this.post("/channel", {
      channel_id: id,
      channel_type: 2,
      subscribers,
    });
  }

  /** Rejects with the answer when it is not 200. */
  post(path: string, body: unknown): Promise<string> {
    const text = JSON.stringify(body);
    return new Promise((resolve, reject) => {
      const call = request(
        {
          host: "127.0.0.1",
          port: this.#port,
          path,
          method: "POST",
          agent: this.#agent,
          headers: {
            "Content-Type": "application/json",
            "Content-Length": Buffer.byteLength(text),
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
