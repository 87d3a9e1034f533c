// Tests of webhooks on a running node: calls, deliveries, failures and replays.

import { execFileSync } from "node:child_process";
import type { ServerResponse } from "node:http";
import { setTimeout as pause } from "node:timers/promises";
import t, { type Test } from "tap";
import { openFeed } from "../behaviour/feed.ts";
import {
  type ApiResponse,
  type Broker,
  type Settings,
  startBroker,
  textPayload,
} from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { startRedis } from "../support/redis.ts";
import { PYTHON, requirePackage } from "./packages.ts";
import { type ReceivedEvent, type Receiver, startReceiver } from "./receiver.ts";

const { Ajv2020 } = requirePackage("ajv/dist/2020.js");

interface World {
  readonly broker: Broker;
  /** Calls the API with any method. Returns the status and the body. */
  call(method: string, path: string, body?: unknown): Promise<Pick<ApiResponse, "status" | "body">>;
  send(channelId: string, content: string): Promise<number>;
  /** Reads a metric of a webhook. */
  gauge(name: string, webhook: { readonly webhookId: string }): Promise<number>;
  /** Returns the entry of a webhook in the list of webhooks. */
  // biome-ignore lint/suspicious/noExplicitAny: tests read the fields of the reply
  view(webhook: { readonly webhookId: string }): Promise<any>;
  /** Creates a receiver and a webhook for it. */
  webhook(t: Test, settings?: object): Promise<Receiver & { readonly webhookId: string }>;
}

async function startWorld(t: Test, settings: Settings = {}, dataPath?: string): Promise<World> {
  const broker = await startBroker(t, settings, dataPath);
  await broker.call("/events/feed", { feed: "on" });
  const call: World["call"] = async (method, path, body) => {
    const response = await fetch(`http://127.0.0.1:${broker.apiPort}${path}`, {
      method,
      headers: { "content-type": "application/json" },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    return { status: response.status, body: await response.json() };
  };
  return {
    broker,
    call,
    async send(channelId, content) {
      const { status, body } = await call("POST", "/message/send", {
        ...{ from_uid: "bob", channel_id: channelId, channel_type: 1 },
        payload: textPayload(content),
      });
      if (status !== 200) throw new Error(`sending failed: ${JSON.stringify(body)}`);
      return body.message_id;
    },
    async gauge(name, { webhookId }) {
      const page = await fetch(`http://127.0.0.1:${broker.apiPort}/metrics`);
      const start = `jindou_webhook_${name}{webhook="${webhookId}"} `;
      const lines = (await page.text()).split("\n");
      return Number(lines.find((line) => line.startsWith(start))?.slice(start.length));
    },
    async view({ webhookId }) {
      const { body } = await call("GET", "/webhooks");
      return body.webhooks.find(({ id }: { id: string }) => id === webhookId);
    },
    async webhook(inTest, chosen = {}) {
      const receiver = await startReceiver(inTest);
      const batch = { max: 100, waitMs: 0 };
      const { status, body } = await call("POST", "/webhooks", {
        ...{ url: receiver.url, types: ["message.stored"], batch, ...chosen },
      });
      if (status !== 201) throw new Error(`no webhook: ${JSON.stringify(body)}`);
      receiver.secret = body.secret;
      inTest.teardown(() => call("DELETE", `/webhooks/${body.id}`));
      return Object.assign(receiver, { webhookId: body.id as string });
    },
  };
}

/** Resolves when the receiver has got an event, or after some seconds. */
async function untilEventOrTimeout(receiver: Receiver): Promise<void> {
  const timeout = pause(8000, undefined, { ref: false });
  await Promise.race([receiver.until(() => receiver.events.length > 0), timeout]);
}

/** Makes the receiver hold its replies. Returns the responses, to which a test can reply. */
function holdReplies(receiver: Receiver): readonly ServerResponse[] {
  const responses: ServerResponse[] = [];
  receiver.reply = (_, response) => {
    responses.push(response);
    return undefined;
  };
  return responses;
}

/** Replies that the receiver is down and must get no request for an hour. */
const downForAnHour: Receiver["reply"] = (_, response) => {
  response.writeHead(503, { "retry-after": "3600" }).end();
  return undefined;
};

/** Resolves when the condition is true. */
async function until(condition: () => Promise<boolean>): Promise<void> {
  while (!(await condition())) await pause(50);
}

/** A Python program that tries to verify a request and a changed request with two libraries. */
const VERIFY = `
import json, sys
import standardwebhooks.webhooks, svix.webhooks
given = json.load(sys.stdin)
for library in (standardwebhooks.webhooks, svix.webhooks):
    webhook = library.Webhook(given["secret"])
    webhook.verify(given["body"], given["headers"])
    print("verified")
    try:
        webhook.verify(given["body"] + " ", given["headers"])
    except library.WebhookVerificationError:
        print("refused")
`;

const [SECRET, OTHER_SECRET] = [7, 8].map(
  (byte) => `whsec_${Buffer.alloc(32, byte).toString("base64")}`,
) as [string, string];

const contentOf = ({ data }: { readonly data: { readonly payload: string } }): string =>
  JSON.parse(Buffer.from(data.payload, "base64").toString()).content;

/** Returns all events of the feed, read in pages. */
async function polledEvents({ call }: World): Promise<readonly ReceivedEvent[]> {
  const events: ReceivedEvent[] = [];
  for (let after = "oldest"; ; ) {
    const { body } = await call("GET", `/events?after=${after}&limit=300`);
    events.push(...body.events);
    if (body.more === 0) return events;
    after = body.cursor;
  }
}

/** Returns the first `count` events of the feed, read as server-sent events. */
async function streamedEvents({ broker }: World, count: number): Promise<readonly ReceivedEvent[]> {
  const headers = { accept: "text/event-stream" };
  const response = await fetch(`http://127.0.0.1:${broker.apiPort}/events?after=oldest`, {
    headers,
  });
  const events: ReceivedEvent[] = [];
  let text = "";
  for await (const piece of response.body ?? []) {
    text += Buffer.from(piece).toString();
    const lines = text.split("\n");
    text = lines.pop() ?? "";
    for (const line of lines)
      if (line.startsWith("data: ")) events.push(JSON.parse(line.slice("data: ".length)));
    if (events.length >= count) break; // closes the connection
  }
  return events;
}

const textsOf = (events: readonly ReceivedEvent[]) =>
  events.map((event) => JSON.stringify(event)).sort();

t.test("a node delivers events to its webhooks", async (t) => {
  const world = await startWorld(t);

  t.test("an event that the receiver rejects is parked, and a retry delivers it", async (t) => {
    const receiver = await world.webhook(t);
    const isPoison = (request: Receiver["requests"][number]) =>
      request.events.some((event) => contentOf(event) === "poison");
    receiver.reply = (request) => (isPoison(request) ? 422 : 200);
    for (let at = 0; at < 1000; at += 100)
      await Promise.all(
        Array.from({ length: 100 }, (_, index) =>
          world.send("eve", at + index === 440 ? "poison" : `fine-${at + index}`),
        ),
      );
    await receiver.until(() => receiver.events.length === 999);
    const path = `/webhooks/${receiver.webhookId}/failures`;
    const failures = async () => (await world.call("GET", path)).body.failures;
    await until(async () => (await failures()).length === 1);
    const [failure] = await failures();
    t.match(
      failure,
      { type: "message.stored", status: 422, attempts: 5 },
      "the failed event is listed",
    );
    const seqs = receiver.events.map(({ data }) => data.message_seq);
    t.strictSame(
      seqs,
      [...seqs].sort((a, b) => a - b),
      "the other events are in order",
    );
    await until(async () => (await world.gauge("lag_events", receiver)) === 0);
    t.equal(await world.gauge("parked_events", receiver), 1, "the metric counts the failed event");
    receiver.reply = (_, response) => {
      response.writeHead(500).end("try later");
      return undefined;
    };
    const retry = `${path}/${failure.event_id}/retry`;
    t.match(await world.call("POST", retry), { status: 200, body: { status: 500, attempt: 6 } });
    t.match(
      await failures(),
      [{ status: 500, response: "try later", attempts: 6 }],
      "a retry that fails replaces the status and the reply",
    );
    receiver.reply = (_, response) => {
      response.destroy();
      return undefined;
    };
    t.match(await world.call("POST", retry), { status: 200, body: { status: 0, attempt: 7 } });
    t.match(await failures(), [{ status: 0, error: /./, response: "", attempts: 7 }]);
    receiver.reply = () => 200;
    const retried = await world.call("POST", retry);
    t.match(retried, { status: 200, body: { status: 200, attempt: 8 } }, "the retry is accepted");
    t.equal(receiver.events.at(-1)?.id, failure.event_id, "the receiver has the event");
    const alone = receiver.requests.filter(
      (request) => request.events.length === 1 && isPoison(request),
    );
    const contents = new Set(alone.map(({ id, body }) => `${id} ${body}`));
    t.equal(contents.size, 1, "each attempt has the same id and bytes");
    t.strictSame(await failures(), [], "the event is no longer listed");
    await until(async () => (await world.gauge("parked_events", receiver)) === 0);
    t.equal((await world.call("POST", retry)).status, 404);
    const received = textsOf(receiver.events);
    t.strictSame(textsOf(await polledEvents(world)), received, "a poll has the same events");
    const streamed = await streamedEvents(world, 1000);
    t.strictSame(textsOf(streamed), received, "server-sent events are the same");
  });

  t.test("a retry of a failed event has the format of the earlier attempts", async (t) => {
    const receiver = await world.webhook(t, { types: ["channel.created"] });
    receiver.reply = () => 422;
    await world.call("POST", "/channel", { channel_id: "rejected", channel_type: 2 });
    const path = `/webhooks/${receiver.webhookId}`;
    const failures = async () => (await world.call("GET", `${path}/failures`)).body.failures;
    await until(async () => (await failures()).length === 1);
    await world.call("PATCH", path, { format: "wukongim", batch: { max: 1 } });
    receiver.reply = () => 204;
    const [failure] = await failures();
    await world.call("POST", `${path}/failures/${failure.event_id}/retry`);
    const contents = new Set(receiver.requests.map(({ id, body }) => `${id} ${body}`));
    t.equal(contents.size, 1, "each attempt has the same id and bytes");
    t.equal(receiver.requests.length, 6);
  });

  t.test(
    "an event that one retry delivered is not listed as a failure after another retry failed",
    async (t) => {
      const receiver = await world.webhook(t);
      receiver.reply = () => 422;
      await world.send("wes", "poison");
      const path = `/webhooks/${receiver.webhookId}/failures`;
      const failures = async () => (await world.call("GET", path)).body.failures;
      await until(async () => (await failures()).length === 1);
      const [{ event_id: eventId }] = await failures();
      const held = holdReplies(receiver);
      const retry = () => world.call("POST", `${path}/${eventId}/retry`);
      const retries = [retry(), retry()];
      await receiver.until(() => held.length === 2);
      held[0]?.writeHead(200).end();
      const first = await Promise.race(retries);
      held[1]?.writeHead(500).end();
      const statuses = (await Promise.all(retries)).map(({ body }) => body.status);
      t.equal(first.body.status, 200, "one retry is accepted");
      t.strictSame(statuses.sort(), [200, 500], "the other retry fails");
      t.strictSame(await failures(), [], "the event is no longer listed");
    },
  );

  t.test("a webhook with order `none` has at most 8 requests in flight", async (t) => {
    const receiver = await world.webhook(t, { order: "none", batch: { max: 1, waitMs: 0 } });
    let open = 0;
    receiver.reply = ({ headers }) => {
      if (headers["webhook-attempt"] === "1") return 422;
      open += 1; // the request is never answered
      return undefined;
    };
    const users = Array.from({ length: 20 }, (_, at) => `none-${at}`);
    await Promise.all(users.flatMap((user) => [1, 2, 3, 4].map(() => world.send(user, "x"))));
    await receiver.until(() => open >= 8);
    await pause(500);
    t.equal(open, 8, "further requests wait");
  });

  t.test("each stored message reaches a webhook once, in the order of its channel", async (t) => {
    const receiver = await world.webhook(t);
    const channels = ["ann", "ben", "cat"];
    for (let at = 0; at < 40; at++)
      await Promise.all(channels.map((channel) => world.send(channel, `${channel}-${at}`)));
    await receiver.until(() => receiver.events.length === 120);
    for (const channel of channels) {
      const contents = receiver.events.map(contentOf).filter((text) => text.startsWith(channel));
      t.strictSame(
        contents,
        Array.from({ length: 40 }, (_, at) => `${channel}-${at}`),
        `the messages to ${channel} are in order`,
      );
    }
  });

  t.test("events that arrive within batch.waitMs share a request", async (t) => {
    const waitMs = 400;
    const receiver = await world.webhook(t, { batch: { max: 100, waitMs } });
    const startMs = performance.now();
    for (let at = 0; at < 40; at++) {
      await world.send("pam", `p-${at}`);
      await pause(20);
    }
    const most = 2 + Math.ceil((performance.now() - startMs) / waitMs);
    await receiver.until(() => receiver.events.length === 40);
    const { length } = receiver.requests;
    t.ok(length <= most, `${length} requests for 40 events, at most ${most}`);
    const contents = Array.from({ length: 40 }, (_, at) => `p-${at}`);
    t.strictSame(receiver.events.map(contentOf), contents, "the events are in order");
  });

  t.test("a full request does not wait for batch.waitMs", async (t) => {
    const receiver = await world.webhook(t, { batch: { max: 3, waitMs: 60_000 } });
    for (let at = 0; at < 7; at++) await world.send("ned", `n-${at}`);
    await receiver.until(() => receiver.events.length === 6);
    const sizes = receiver.requests.map(({ events }) => events.length);
    t.strictSame(sizes, [3, 3], "two requests are full, and the last event waits");
    await world.call("PATCH", `/webhooks/${receiver.webhookId}`, { batch: { waitMs: 0 } });
    await receiver.until(() => receiver.events.length === 7);
  });

  t.test("a failed request is repeated with the same id and bytes", async (t) => {
    const receiver = await world.webhook(t);
    receiver.reply = (_, response) => {
      if (receiver.requests.length > 1) return 200;
      response.writeHead(200, { "content-length": "9" }).write("cut");
      response.destroy();
      return undefined;
    };
    await world.send("dan", "again");
    await receiver.until(() => receiver.events.length === 1);
    const [first, second] = receiver.requests;
    t.strictSame([second?.id, second?.body], [first?.id, first?.body], "id and body are equal");
    t.strictSame(
      receiver.requests.map(({ headers }) => headers["webhook-attempt"]),
      ["1", "2"],
      "the header counts the attempts",
    );
  });

  t.test("the age of the oldest undelivered event is counted from the event's time", async (t) => {
    const receiver = await world.webhook(t, { batch: { max: 1, waitMs: 0 } });
    const age = () => world.gauge("oldest_undelivered_seconds", receiver);
    const responses: ServerResponse[] = [];
    receiver.reply = (_, response) => {
      responses.push(response);
      return undefined;
    };
    await world.send("leo", "one");
    await world.send("leo", "two");
    await until(async () => (await age()) >= 1);
    responses[0]?.end();
    await receiver.until(() => responses.length === 2);
    t.ok((await age()) >= 1, "the second event has waited for the first");
    responses[1]?.end();
    await until(async () => (await age()) === 0);
  });

  t.test("a reply with 410 disables a webhook until it is enabled again", async (t) => {
    const receiver = await world.webhook(t);
    receiver.reply = () => 410;
    await world.send("fay", "gone");
    await until(async () => (await world.view(receiver)).enabled === 0);
    t.match(await world.view(receiver), { disabled_reason: /410/ }, "the list has the reason");
    receiver.reply = () => 200;
    await world.send("fay", "later");
    await world.call("PATCH", `/webhooks/${receiver.webhookId}`, { enabled: 1 });
    await receiver.until(() => receiver.events.length === 2);
    t.strictSame(receiver.events.map(contentOf), ["gone", "later"], "no event was lost");
  });

  t.test("late 410 replies do not disable a webhook that was enabled again", async (t) => {
    const receiver = await world.webhook(t, { order: "none", batch: { max: 1, waitMs: 0 } });
    const held = holdReplies(receiver);
    const users = ["pat", "quin", "rex", "sue"];
    for (const user of users) await world.send(user, user);
    await receiver.until(() => held.length === users.length);
    held[0]?.writeHead(410).end();
    await until(async () => (await world.view(receiver)).enabled === 0);
    await world.call("PATCH", `/webhooks/${receiver.webhookId}`, { enabled: 1 });
    receiver.reply = () => 204;
    for (const response of held.slice(1)) response.writeHead(410).end();
    await until(
      async () =>
        receiver.events.length === users.length || (await world.view(receiver)).enabled === 0,
    );
    t.equal((await world.view(receiver)).enabled, 1, "the webhook is still enabled");
    t.equal(await world.gauge("disabled_total", receiver), 1, "it was disabled once");
  });

  for (const status of [410, 503])
    t.test(
      `a late ${status} from the old URL of a webhook does not stop deliveries to the new URL`,
      async (t) => {
        const receiver = await world.webhook(t);
        const held = holdReplies(receiver);
        await world.send("tim", "late");
        await receiver.until(() => held.length === 1);
        const next = await startReceiver(t);
        await world.call("PATCH", `/webhooks/${receiver.webhookId}`, { url: next.url });
        held[0]?.writeHead(status, { "retry-after": "3600" }).end();
        await untilEventOrTimeout(next);
        t.strictSame(next.events.map(contentOf), ["late"], "the new URL gets the event");
        t.equal((await world.view(receiver)).enabled, 1, "the webhook is still enabled");
      },
    );

  t.test("a webhook's new URL gets events at once, even if the old URL was down", async (t) => {
    const receiver = await world.webhook(t);
    receiver.reply = downForAnHour;
    await world.send("oli", "waiting");
    await receiver.until(() => receiver.requests.length === 1);
    const next = await startReceiver(t);
    await world.call("PATCH", `/webhooks/${receiver.webhookId}`, { url: next.url });
    await untilEventOrTimeout(next);
    t.strictSame(next.events.map(contentOf), ["waiting"], "the failed request is repeated");
    t.equal(next.requests[0]?.headers["webhook-attempt"], "1", "its attempts start over");
  });

  t.test(
    "a webhook's new secret is used at once, even if the receiver refused the earlier one",
    async (t) => {
      const receiver = await world.webhook(t);
      receiver.reply = (_, response) => {
        response.writeHead(401, { "retry-after": "3600" }).end();
        return undefined;
      };
      await world.send("val", "unauthorized");
      await receiver.until(() => receiver.requests.length === 1);
      receiver.secret = ""; // the next request may arrive before the call returns the new secret
      receiver.reply = () => 204;
      await world.call("POST", `/webhooks/${receiver.webhookId}/secrets`, { overlapS: 0 });
      await untilEventOrTimeout(receiver);
      t.strictSame(receiver.events.map(contentOf), ["unauthorized"], "the request is repeated");
    },
  );

  t.test("a replay delivers a range of the feed again", async (t) => {
    const receiver = await world.webhook(t);
    await world.send("gus", "one");
    await world.send("gus", "two");
    await receiver.until(() => receiver.events.length === 2);
    const path = `/webhooks/${receiver.webhookId}/replay`;
    const { status } = await world.call("POST", path, { after: "oldest" });
    t.equal(status, 200, "the replay has begun");
    const isReplay = ({ headers }: Receiver["requests"][number]) =>
      headers["webhook-replay"] === "1";
    const replayed = () =>
      receiver.requests.filter(isReplay).flatMap(({ events }) => events.map(contentOf));
    await receiver.until(() => ["ann-0", "two"].every((content) => replayed().includes(content)));
    t.ok(replayed().includes("ann-0"), "the replay has older events");
    await until(async () => (await world.view(receiver)).replays === 0);
    t.match(await world.call("POST", path, { after: "nonsense" }), {
      status: 400,
      body: { code: "bad_cursor" },
    });
  });

  t.test("the test call of a webhook sends a ping and is listed as an attempt", async (t) => {
    const receiver = await world.webhook(t);
    const path = `/webhooks/${receiver.webhookId}`;
    receiver.reply = (_, response) => {
      response.writeHead(418).end("I am a teapot");
      return undefined;
    };
    const { body } = await world.call("POST", `${path}/test`);
    t.match(body, { status: 418, response: "I am a teapot", events: 0 }, "the reply is returned");
    t.match(receiver.requests[0]?.events, [{ type: "ping" }], "the receiver gets a ping");
    const { body: listed } = await world.call("GET", `${path}/attempts?limit=5`);
    t.match(listed.attempts, [{ status: 418, webhook_id: receiver.requests[0]?.id }]);
  });

  t.test(
    "requests are signed with the new and the earlier secret during the overlap of a rotation",
    async (t) => {
      const receiver = await world.webhook(t);
      const earlier = receiver.secret;
      const path = `/webhooks/${receiver.webhookId}`;
      const { body } = await world.call("POST", `${path}/secrets`, { overlapS: 60 });
      for (const secret of [earlier, body.secret]) {
        receiver.secret = secret; // the receiver throws if this secret does not verify the request
        await world.call("POST", `${path}/test`);
      }
      t.equal(receiver.requests.length, 2, "both secrets verify the requests");
      if (PYTHON !== undefined) {
        const [request] = receiver.requests;
        const input = JSON.stringify({ secret: earlier, ...request });
        const env = { ...process.env, PYTHONPATH: PYTHON };
        const output = execFileSync("python3", ["-c", VERIFY], { input, encoding: "utf8", env });
        const lines = ["verified", "refused", "verified", "refused"];
        t.strictSame(
          output.trim().split("\n"),
          lines,
          "two Python libraries also verify the requests",
        );
      }
      receiver.secret = "";
      await world.call("POST", `${path}/secrets`, { overlapS: 0 });
      await world.call("POST", `${path}/test`);
      const signatures = receiver.requests.at(-1)?.headers["webhook-signature"];
      t.equal(signatures?.split(" ").length, 1, "without an overlap only the new secret signs");
      t.notMatch((await world.call("GET", "/webhooks")).body, /whsec_/, "no secret is in a list");
    },
  );

  t.test(
    "a webhook gets only events that match its channel filter, and with batch.max 1 a request has the id of its event",
    async (t) => {
      const channels = { type: 1, prefix: "ivy" };
      const receiver = await world.webhook(t, { channels, batch: { max: 1 } });
      await world.send("hal", "not selected");
      await world.send("ivy", "selected");
      await receiver.until(() => receiver.events.length === 1);
      const [request] = receiver.requests;
      t.equal(request?.id, request?.events[0]?.id, "the id of the request is that of the event");
      t.equal(
        contentOf(request?.events[0] as never),
        "selected",
        "only events of the channel are delivered",
      );
    },
  );

  t.test("the cloudevents package reads signed requests", async (t) => {
    const { HTTP } = requirePackage("cloudevents");
    for (const max of [1, 100]) {
      const receiver = await world.webhook(t, { format: "cloudevents", batch: { max, waitMs: 0 } });
      await world.send("kai", "cloud");
      // The receiver verifies the signature before it records the event.
      await receiver.until(() => receiver.events.length === 1);
      const [{ headers, body } = { headers: {}, body: "" }] = receiver.requests;
      const [event] = [HTTP.toEvent({ headers, body })].flat();
      const expected = { type: "message.stored", subject: "1:bob@kai", source: "/jindou" };
      t.match(event, expected, `batches of ${max}`);
      t.equal(contentOf(event), "cloud", "the event has the message");
    }
  });

  t.test("invalid and internal URLs and unknown webhook ids are refused", async (t) => {
    const urls = [
      ...["http://169.254.169.254/latest/meta-data", "http://10.0.0.1/", "https://192.168.0.1/"],
      ...["https://[::ffff:10.0.0.1]/", "ftp://example.com/", "nonsense"],
    ];
    for (const url of urls)
      t.match(
        await world.call("POST", "/webhooks", { url }),
        { status: 400, body: { code: "url_refused", error: /./ } },
        `${url} is refused`,
      );
    t.match(await world.call("DELETE", "/webhooks/unknown"), {
      status: 404,
      body: { code: "webhook_not_found" },
    });
  });

  t.test("a receiver that hangs does not delay other receivers", async (t) => {
    const hanging = await world.webhook(t);
    hanging.reply = () => undefined;
    const other = await world.webhook(t);
    await world.send("jan", "first");
    await hanging.until(() => hanging.requests.length === 1);
    await world.send("jan", "second");
    await other.until(() => other.events.length === 2);
    t.equal(hanging.requests.length, 1, "the hanging receiver still has its first request");
  });

  t.test("webhooks that hang do not delay another webhook with the same host", async (t) => {
    const receiver = await startReceiver(t);
    receiver.reply = () => (receiver.urls.at(-1)?.endsWith("hangs") ? undefined : 204);
    const create = async (query: string) => {
      const url = `${receiver.url}?${query}`;
      const batch = { max: 1, waitMs: 0 };
      const { body } = await world.call("POST", "/webhooks", {
        ...{ url, types: ["message.stored"], batch },
      });
      t.teardown(() => world.call("DELETE", `/webhooks/${body.id}`));
      return body.id as string;
    };
    const hanging = await Promise.all(["hangs", "hangs", "hangs"].map(create));
    await Promise.all(Array.from({ length: 60 }, (_, at) => world.send(`channel-${at}`, "first")));
    await receiver.until(() => receiver.requests.length >= 3 * 8);
    await create("replies");
    await world.send("jan", "second");
    await receiver.until(() => receiver.events.length === 1);
    for (const id of hanging) {
      const { body } = await world.call("GET", `/webhooks/${id}/attempts`);
      t.strictSame(body.attempts, [], "the requests still wait for their replies");
    }
  });
});

t.test("events arrive in order after a receiver hangs, breaks off a reply or fails", async (t) => {
  const world = await startWorld(t, { JINDOU_WEBHOOKS_TIMEOUT_MS: "1000" });
  const cut = (response: ServerResponse) => {
    response.writeHead(200, { "content-length": "9" }).write("cut");
    response.destroy();
  };
  const failures: Readonly<Record<string, (response: ServerResponse) => void>> = {
    hang: () => undefined,
    stall: (response) => response.writeHead(200).write("half"),
    cut,
    redirect: (response) =>
      response.writeHead(301, { location: "http://169.254.169.254/latest" }).end(),
    "too many": (response) => response.writeHead(429, { "retry-after": "3" }).end(),
    error: (response) => response.writeHead(500).end(),
    proxy: (response) => response.writeHead(502).end(),
  };
  const cases = await Promise.all(
    Object.entries(failures).map(async ([name, fail]) => {
      const receiver = await world.webhook(t);
      const times: number[] = [];
      receiver.reply = (_, response) => {
        times.push(performance.now());
        if (times.length > 1) return 204;
        fail(response);
        return undefined;
      };
      return { name, receiver, times };
    }),
  );
  for (let at = 0; at < 3; at++) await world.send("max", `m-${at}`);
  for (const { name, receiver, times } of cases) {
    await receiver.until(() => receiver.events.length === 3);
    t.strictSame(receiver.events.map(contentOf), ["m-0", "m-1", "m-2"], `after ${name}`);
    const [first = 0, second = 0] = times;
    const leastMs = name === "too many" ? 3000 : 700;
    t.ok(second - first >= leastMs, `the receiver had time to recover after ${name}`);
    await until(async () => (await world.gauge("lag_events", receiver)) === 0);
    t.equal(await world.gauge("oldest_undelivered_seconds", receiver), 0, "no event waits");
  }
});

t.test("a configured webhook receives the first event after the feed is turned on", async (t) => {
  const receiver = await startReceiver(t);
  receiver.secret = SECRET;
  const endpoint = { id: "fixed", url: receiver.url, secret: SECRET };
  const { send } = await startWorld(t, { JINDOU_WEBHOOKS_ENDPOINTS: JSON.stringify([endpoint]) });
  await send("kim", "first");
  await untilEventOrTimeout(receiver);
  t.equal(receiver.events.length, 1);
});

t.test("a configured webhook can be enabled again, but not changed", async (t) => {
  const receiver = await startReceiver(t);
  receiver.secret = SECRET;
  receiver.reply = () => 410;
  const endpoint = { id: "fixed", url: receiver.url, secret: SECRET, batchWaitMs: 0 };
  const { call, send } = await startWorld(t, {
    JINDOU_WEBHOOKS_ENDPOINTS: JSON.stringify([endpoint]),
  });
  const state = async () => (await call("GET", "/webhooks")).body.webhooks[0];
  await until(async () => (await state()) !== undefined);
  await send("kim", "gone");
  await until(async () => (await state()).enabled === 0);
  const path = "/webhooks/fixed";
  const refused = { status: 409, body: { code: "webhook_fixed" } };
  t.match(
    await call("PATCH", path, { enabled: 1, order: "none" }),
    refused,
    "no other setting can be changed",
  );
  t.match(await call("PATCH", path, { enabled: 0 }), refused, "the webhook cannot be disabled");
  t.match(
    await call("POST", `${path}/secrets`, { overlapS: 0 }),
    refused,
    "the webhook cannot get a different secret",
  );
  t.match(await call("DELETE", path), refused, "the webhook cannot be deleted");
  receiver.reply = () => 204;
  t.match(await call("PATCH", path, { enabled: 1 }), { status: 200, body: { enabled: 1 } });
  await receiver.until(() => receiver.events.some(({ type }) => type === "message.stored"));
});

t.test("a new URL or secret in the configuration ends a webhook's retry delay", async (t) => {
  const old = await startReceiver(t);
  const receiver = await startReceiver(t);
  old.reply = downForAnHour;
  let dataPath: string | undefined;
  const startWith = async (url: string, secret: string) => {
    const endpoint = { id: "fixed", url, secret, batchWaitMs: 0 };
    const settings = { JINDOU_WEBHOOKS_ENDPOINTS: JSON.stringify([endpoint]) };
    const world = await startWorld(t, settings, dataPath);
    ({ dataPath } = world.broker);
    return world;
  };
  const first = await startWith(old.url, SECRET);
  await until(async () => (await first.call("GET", "/webhooks")).body.webhooks.length === 1);
  const firstId = await first.send("lea", "one");
  await old.until(() => old.requests.length > 0);
  await first.broker.close();
  const isDelivered = (id: number) => receiver.events.some(({ data }) => data.message_id === id);
  receiver.secret = SECRET;
  const second = await startWith(receiver.url, SECRET);
  await receiver.until(() => isDelivered(firstId));
  receiver.reply = downForAnHour;
  const secondId = await second.send("lea", "two");
  await receiver.until(() => receiver.requests.length > 1);
  await second.broker.close();
  receiver.reply = () => 204;
  receiver.secret = OTHER_SECRET;
  await startWith(receiver.url, OTHER_SECRET);
  await receiver.until(() => isDelivered(secondId));
});

t.test(
  "a late 410 from the old URL does not disable a webhook that another node changed",
  async (t) => {
    const redis = await startRedis(t);
    const start = (id: string) =>
      startWorld(t, { JINDOU_REDIS_URL: redis.url, JINDOU_NODE_ID: id });
    const worlds = [await start("n0"), await start("n1")] as const;
    const receiver = await worlds[0].webhook(t);
    await worlds[0].send("uma", "first");
    await receiver.until(() => receiver.events.length === 1);
    const { body } = await worlds[0].call("GET", `/webhooks/${receiver.webhookId}/attempts`);
    const other = body.attempts[0]?.node_id === "n0" ? worlds[1] : worlds[0];
    const held = holdReplies(receiver);
    await worlds[0].send("uma", "second");
    await receiver.until(() => held.length === 1);
    const next = await startReceiver(t);
    await other.call("PATCH", `/webhooks/${receiver.webhookId}`, { url: next.url });
    held[0]?.writeHead(410).end();
    await untilEventOrTimeout(next);
    t.strictSame(next.events.map(contentOf), ["second"], "the new URL gets the event");
    t.equal((await other.view(receiver)).enabled, 1, "the webhook is still enabled");
  },
);

t.test("no key in Redis remains for a deleted webhook", async (t) => {
  const redis = await startRedis(t);
  const { broker, call } = await startWorld(t, { JINDOU_REDIS_URL: redis.url });
  const receiver = await startReceiver(t);
  const { body } = await call("POST", "/webhooks", { url: receiver.url });
  await call("POST", `/webhooks/${body.id}/test`);
  await call("DELETE", `/webhooks/${body.id}`);
  await broker.close();
  const client = redis.client();
  const keys = await client.keys("*");
  t.strictSame(
    keys.filter((key) => key.includes(body.id)),
    [],
    "no key in Redis names the webhook",
  );
});

/** Returns a function that checks an event with the OpenAPI document and returns the errors. */
async function eventValidator({ call }: World): Promise<(event: { type: string }) => unknown> {
  const { body: document } = await call("GET", "/openapi.json");
  const ajv = new Ajv2020({ strict: false, validateFormats: false });
  ajv.addSchema(document, "api");
  return (event) => {
    const path = `webhooks/${event.type}/post/requestBody/content/application~1json/schema`;
    const validate = ajv.getSchema(`api#/${path}`);
    if (validate === undefined) return `${event.type} is not documented`;
    return validate(event) ? [] : validate.errors;
  };
}

/**
 * Changes the token of a user, and makes one main device end the session of another. Returns the
 * types of the events.
 */
async function causeUserEvents(t: Test, { broker, call }: World, uid: string) {
  const token = { uid, token: "secret", device_flag: 0, device_level: 1 };
  await call("POST", "/user/token", token);
  const { clientPort: port } = broker;
  for (const deviceId of ["phone", "tablet"])
    await connectNative(t, { uid, token: "secret", port, deviceId });
  await call("POST", "/user/device_quit", { uid, device_flag: 0 });
  return [...["user.token_changed", "session.kicked"], ...["user.token_changed", "session.kicked"]];
}

/**
 * Makes API calls that cause the events of a channel, its members, a message and a stream. Returns
 * the types, in the order of their events.
 */
async function causeAllEvents({ call }: World, id: string): Promise<readonly string[]> {
  const channel = { channel_id: id, channel_type: 2 };
  const post = async (path: string, body: object) => {
    const reply = await call("POST", path, body);
    if (reply.status !== 200) throw new Error(`${path}: ${JSON.stringify(reply.body)}`);
  };
  const subscribers = (...uids: string[]) => ({ ...channel, subscribers: uids });
  const stream = (type: string, data: string) => ({
    ...{ ...channel, client_msg_no: `${id}-answer`, from_uid: "ann" },
    event: { type: `___TextMessage${type}`, data },
  });
  await post("/channel", subscribers("ann", "ben"));
  await post("/channel/subscriber_add", { ...subscribers("cat"), temp_subscriber: 1 });
  await post("/message/send", { ...channel, from_uid: "ann", payload: textPayload("hello") });
  await post("/channel/subscriber_remove", subscribers("ben"));
  await post("/channel/info", { ...channel, ban: 1 });
  await post("/channel/info", { ...channel, ban: 0 });
  await post("/event", stream("Start", ""));
  for (const text of ["ä".repeat(32_000), "b".repeat(10_000)])
    await post("/event", stream("Content", text));
  await post("/event", stream("End", ""));
  await post("/channel", { ...channel, disband: 1 });
  return [
    ...["channel.created", "channel.members_added", "channel.members_added", "message.stored"],
    ...["channel.members_removed", "channel.updated", "channel.updated", "message.stored"],
    ...["stream.ended", "channel.deleted"],
  ];
}

t.test(
  "events match their schemas and are the same in a webhook, a poll and server-sent events",
  async (t) => {
    const redis = await startRedis(t);
    for (const settings of [{}, { JINDOU_REDIS_URL: redis.url }]) {
      const world = await startWorld(t, settings);
      const errorsOf = await eventValidator(world);
      const names = ["message.*", "channel.*", "stream.*", "user.token_changed", "session.kicked"];
      const receiver = await world.webhook(t, { types: names });
      const types = await causeAllEvents(world, "story");
      const userTypes = await causeUserEvents(t, world, "zoe");
      const count = types.length + userTypes.length;
      await receiver.until(() => receiver.events.length >= count);
      const path = `/events?types=${names.join(",")}&limit=1000`;
      const all: readonly ReceivedEvent[] = (await world.call("GET", path)).body.events;
      for (const event of all) t.strictSame(errorsOf(event), [], event.type);
      const typesOf = (list: readonly ReceivedEvent[]) => list.map(({ type }) => type);
      const events = all.filter(({ data }) => data.channel_key === "2:story");
      t.strictSame(typesOf(events), types, "the events are in the order of the changes");
      t.strictSame(typesOf(all.filter(({ data }) => data.uid === "zoe")), userTypes);
      const byId = (list: readonly ReceivedEvent[]) =>
        Object.fromEntries(list.map((event) => [event.id, event]));
      t.strictSame(byId(receiver.events), byId(all), "the webhook got the same events");
      const feed = await openFeed(t, `http://127.0.0.1:${world.broker.apiPort}${path}`);
      await feed.untilEvents(count);
      t.strictSame(
        byId(feed.events.map(({ data }) => data)),
        byId(all),
        "a follower got the same events",
      );
      const [created] = events;
      t.match(created?.data, {
        channel_id: "story",
        channel_type: 2,
        channel_key: "2:story",
        ban: 0,
      });
      const ended = events.at(-2)?.data;
      t.match(ended, { message_seq: 2, state: "closed", truncated: 1 });
      t.equal(ended.text, "ä".repeat(32_000) + "b".repeat(64 * 1024 - 64_000));
    }
  },
);

t.test("a filter with a name that matches no event type is refused", async (t) => {
  const { call } = await startWorld(t);
  const message = /^user\.onlin does not match any type of event\. The types are message\.stored, /;
  const refused = { status: 400, body: { code: "bad_request", error: message } };
  t.match(await call("GET", "/events?types=message.*,user.onlin"), refused);
  const url = "http://127.0.0.1:1/";
  t.match(await call("POST", "/webhooks", { url, types: ["user.onlin"] }), refused);
});
