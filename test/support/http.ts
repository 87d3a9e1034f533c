// Makes the HTTP calls of tests with node:http over keep-alive connections, because `fetch` takes
// three times the processor time. Owns the connections. Never retries a call and follows no
// redirect.

import { Agent, request } from "node:http";

/** Idle time after which a connection is closed. The broker waits longer before it closes one. */
const IDLE_MS = 4000;

const agent = new Agent({ keepAlive: true, timeout: IDLE_MS });

export interface HttpCall {
  readonly port: number;
  /** Path and query. */
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  /** Value that is sent as JSON with POST. If absent, the method is GET. */
  readonly body?: unknown;
  /** Time after which the call is rejected. Default: no limit. */
  readonly timeoutMs?: number;
}

export interface HttpReply {
  readonly status: number;
  readonly headers: Headers;
  /** Parsed JSON, or the text of a body that is not JSON. */
  // biome-ignore lint/suspicious/noExplicitAny: tests read any field of a body without a schema
  readonly body: any;
}

/**
 * Makes a call and resolves with its response. Rejects if the connection fails before the complete
 * response has arrived.
 */
export function callHttp({ port, path, headers, body, timeoutMs }: HttpCall): Promise<HttpReply> {
  return new Promise((resolve, reject) => {
    const calling = request(new URL(`http://127.0.0.1:${port}${path}`), {
      method: body === undefined ? "GET" : "POST",
      headers: { "content-type": "application/json", ...headers },
      agent,
    });
    const timer =
      timeoutMs &&
      setTimeout(() => calling.destroy(new Error(`no response within ${timeoutMs} ms`)), timeoutMs);
    const fail = (error: Error) => {
      clearTimeout(timer);
      reject(error);
    };
    calling.on("error", fail);
    calling.on("response", (response) => {
      let text = "";
      response.setEncoding("utf8");
      response.on("data", (chunk: string) => {
        text += chunk;
      });
      response.on("error", fail);
      response.on("end", () => {
        clearTimeout(timer);
        const { statusCode: status = 0, headers: fields, rawHeaders } = response;
        try {
          resolve({
            status,
            get headers() {
              return headersOf(rawHeaders); // on demand: the class `Headers` loads much code
            },
            body: fields["content-type"]?.includes("json") ? JSON.parse(text) : text,
          });
        } catch (error) {
          reject(error);
        }
      });
    });
    calling.end(body === undefined ? undefined : JSON.stringify(body));
  });
}

function headersOf(raw: readonly string[]): Headers {
  const headers = new Headers();
  for (let at = 0; at < raw.length; at += 2) headers.append(raw[at] ?? "", raw[at + 1] ?? "");
  return headers;
}
