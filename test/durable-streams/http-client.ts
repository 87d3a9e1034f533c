// Calls with any headers, including Host and Origin, which `fetch` sets by itself.

import { request } from "node:http";

export interface Call {
  readonly method?: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string | Uint8Array;
  /** Local address of the client. */
  readonly from?: string;
}

export interface Reply {
  readonly status: number;
  readonly headers: Readonly<Record<string, string | undefined>>;
  readonly text: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests read any field of a body
  readonly json: any;
}

/** Calls `http://127.0.0.1:<port><path>`. A header in `headers` replaces the client's own one. */
export function callAt(
  port: number,
  path: string,
  { method = "GET", headers = {}, body, from }: Call = {},
): Promise<Reply> {
  return new Promise((resolve, reject) => {
    const target = { host: "127.0.0.1", port, path, ...(from && { localAddress: from }) };
    const options = { ...target, method, headers, agent: false };
    const outgoing = request(options, (incoming) => {
      let text = "";
      incoming.setEncoding("utf8").on("data", (chunk: string) => {
        text += chunk;
      });
      incoming.on("end", () => {
        const { statusCode: status = 0 } = incoming;
        const { headers: received } = incoming;
        const isJson = received["content-type"]?.startsWith("application/json") ?? false;
        resolve({
          ...{ status, text },
          headers: received as Reply["headers"], // no header of the tests is a list
          json: isJson && text !== "" ? JSON.parse(text) : undefined,
        });
      });
      incoming.on("error", reject);
    });
    outgoing.on("error", reject);
    outgoing.end(body);
  });
}
