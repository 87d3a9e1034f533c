// A backend that decides about logins and messages when `hooks.connect` and `hooks.send` call it.
// It verifies each request with `verifyWebhook`, as a real backend does.

import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import type { Test } from "tap";
import { verifyWebhook } from "../../src/backend/webhooks.ts";

export const HOOK_SECRET = `whsec_${Buffer.alloc(32, 7).toString("base64")}`;

export interface HookQuestion {
  readonly type: string;
  readonly timestamp: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests read any field without a schema
  readonly data: any;
  readonly headers: IncomingMessage["headers"];
}

/** Returns the body of the answer, or handles the response itself and returns `undefined`. */
export type Decide = (
  question: HookQuestion,
  response: ServerResponse,
) => object | undefined | Promise<object | undefined>;

export interface HookServer {
  readonly url: string;
  readonly questions: HookQuestion[];
  /** Decides about the next questions. Initially, everything is allowed. */
  decide: Decide;
}

export const allow: Decide = () => ({ allow: true });

/** Starts a backend. Open requests end with the test. */
export async function startHookServer(t: Test): Promise<HookServer> {
  const hook = { url: "", questions: [] as HookQuestion[], decide: allow };
  const server = createServer(async (request, response) => {
    let body = "";
    for await (const part of request.setEncoding("utf8")) body += part;
    try {
      const question = verifyWebhook(body, request.headers, HOOK_SECRET) as HookQuestion; // checked by the tests
      const withHeaders = { ...question, headers: request.headers };
      hook.questions.push(withHeaders);
      const answer = await hook.decide(withHeaders, response);
      if (answer !== undefined) response.end(JSON.stringify(answer));
    } catch (error) {
      response.writeHead(500).end(String(error));
    }
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  hook.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/hook`;
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  return hook;
}
