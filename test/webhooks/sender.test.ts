// Tests of the requests that webhooks send: bodies, addresses and replies. A test of a running node
// cannot choose what a host name resolves to, so the rules for addresses are tested here.

import { createServer, type RequestListener } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import t, { type Test } from "tap";
import { EVENTS_START } from "../../src/broker/event-ports.ts";
import { createWukongimFormat } from "../../src/compat/wukongim/webhook-format.ts";
import { Outgoing } from "../../src/outgoing/outgoing.ts";
import { AddressRules, LOOPBACK_NETWORKS, resolveHost } from "../../src/webhooks/addresses.ts";
import { type Batch, resumed, stepAfter } from "../../src/webhooks/deliveries.ts";
import { cloudEventsFormat, encodeEvent } from "../../src/webhooks/formats.ts";
import { verdictOf } from "../../src/webhooks/retries.ts";
import { createSender } from "../../src/webhooks/sender.ts";
import { requirePackage } from "./packages.ts";

const wukongimFormat = createWukongimFormat(2);

const EVENT = {
  id: "17-000000000001-4398046511105",
  type: "message.stored",
  timestamp: "2026-11-24T00:00:00.000Z",
  data: { channel_key: "2:lobby", message_seq: 1, text: "grüße" },
};

t.test("the cloudevents package reads single and batched events", async (t) => {
  const { HTTP } = requirePackage("cloudevents");
  const read = (isSingle: boolean) => {
    const time = { isSingle, timestamp: EVENT.timestamp };
    const { body, contentType } = cloudEventsFormat.format([encodeEvent(EVENT)], time);
    return HTTP.toEvent({ headers: { "content-type": contentType }, body });
  };
  const expected = { id: EVENT.id, type: EVENT.type, subject: "2:lobby", data: EVENT.data };
  t.match(read(true), expected, "a single event");
  t.match(read(false)[0], expected, "a batch");
});

t.test(
  "a request in WuKongIM's format has the same fields as WuKongIM's own request, in the same order",
  async (t) => {
    const data = {
      ...{ message_id: 42, message_idstr: "42", message_seq: 7, client_msg_no: "c", timestamp: 5 },
      ...{ from_uid: "____system", channel_id: "ben", channel_type: 1, expire: 0, payload: "e30=" },
      header: { no_persist: 0, red_dot: 1, sync_once: 0 },
    };
    const time = { isSingle: false, timestamp: EVENT.timestamp };
    t.strictSame(
      wukongimFormat.format([encodeEvent({ ...EVENT, data })], time),
      {
        contentType: "application/json",
        body: '[{"header":{"no_persist":0,"red_dot":1,"sync_once":0},"setting":0,"message_id":42,"message_idstr":"42","client_msg_no":"c","message_seq":7,"from_uid":"","channel_id":"ben","channel_type":1,"expire":0,"timestamp":5,"payload":"e30="}]',
        query: { event: "msg.notify" },
      },
      "the body equals that of a real server",
    );
    const gone = { message_id: 42, message_idstr: "42", message_seq: 7, gone: 1 };
    for (const type of ["message.stored", "message.unreached"])
      t.equal(
        wukongimFormat.groupOf({ ...EVENT, type, data: gone }),
        undefined,
        `${type}, removed`,
      );
    const session = {
      uid: "dan-x",
      device_flag: 0,
      conn_id: 4,
      device_online_count: 2,
      total_online_count: 2,
    };
    t.match(
      wukongimFormat.format(
        [{ ...EVENT, type: "session.closed", data: session }].map(encodeEvent),
        time,
      ),
      { body: '["dan-x-0-0-4-2-2"]', query: { event: "user.onlinestatus" } },
      "a session that ended",
    );
  },
);

t.test("a failing webhook is disabled after nodes have tried to deliver for maxAgeS", async (t) => {
  const position = { number: 1, id: 1 };
  const settings = { types: [], channels: {}, format: "standard", isSingle: false } as const;
  const batch: Batch = {
    ...{ after: EVENTS_START, first: 1, last: position, count: 1, settings },
    ...{ eventMs: 0, formedMs: 0, attempts: 0, dueMs: 0 },
  };
  const fail = (failing: Batch, steadyMs: number, nowMs: number) => {
    const context = { nowMs, steadyMs, random: 0, maxAgeS: 60, acceptedMs: 0, mayPark: true };
    return stepAfter(failing, { verdict: "down", retryAfterMs: undefined }, context);
  };
  const retried = (step: ReturnType<typeof stepAfter>) => {
    if (step.kind !== "retry") throw new Error(`the step is ${step.kind}`);
    return step.batch;
  };
  const first = retried(fail(batch, 1000, 0));
  const second = retried(fail(first, 40_000, 90_000_000));
  t.equal(
    fail(second, 62_000, 90_000_001).kind,
    "disable",
    "the webhook is disabled after 61 seconds on one node",
  );
  const resumedBatch = resumed(second, 90_000_000);
  const third = retried(fail(resumedBatch, 9_000_000, 90_000_001));
  t.equal(fail(third, 9_022_000, 90_000_002).kind, "disable", "another node continues to count");
});

t.test("a webhook with an internal address or an invalid URL is refused", async (t) => {
  const rules = new AddressRules([]);
  const resolve = async (host: string) => [
    host === "public.example" ? "93.184.216.34" : "127.0.0.1",
  ];
  const refused = [
    ...[
      "http://169.254.169.254/latest",
      "https://169.254.169.254/",
      "https://127.1/",
      "https://10.0.0.8/",
    ],
    ...[
      "https://0x7f000001/",
      "https://2130706433/",
      "https://0.0.0.0/",
      "https://[::1]/",
      "https://[::]/",
    ],
    ...["https://[::ffff:127.0.0.1]/", "https://[::ffff:a9fe:a9fe]/", "https://[fe80::1]/"],
    ...["https://[fd00::1]/", "https://[64:ff9b::7f00:1]/", "https://[2002:7f00:1::]/"],
    ...[
      "https://192.168.1.1/",
      "https://100.64.0.1/",
      "https://224.0.0.1/",
      "https://255.255.255.255/",
    ],
    ...["https://intern.example/", "http://public.example/", "https://user:secret@public.example/"],
    ...["ftp://public.example/", "/hook", "https://public.example:0/", "https://public.example/#a"],
  ];
  for (const url of refused)
    t.type(await rules.urlRefusal(url, resolve), "string", `${url} is refused with a reason`);
  t.equal(
    await rules.urlRefusal("https://public.example/a?b=1", resolve),
    undefined,
    "other addresses are accepted",
  );
  const nowhere = async () => Promise.reject(new Error("ENOTFOUND"));
  t.match(await rules.urlRefusal("https://nowhere.example/", nowhere), /cannot be resolved/);
});

t.test(
  "webhooks may use allowed networks without TLS, but never link-local addresses",
  async (t) => {
    const rules = new AddressRules(["10.0.0.0/8", "::/0", "169.254.0.0/16"]);
    t.equal(rules.refusal("10.1.2.3", false), undefined, "an allowed network");
    t.type(rules.refusal("192.168.1.1", true), "string", "another internal network");
    t.type(rules.refusal("169.254.169.254", true), "string", "the metadata of a cloud");
    t.type(
      rules.refusal("::ffff:169.254.169.254", true),
      "string",
      "the metadata of a cloud in another notation",
    );
    t.type(rules.refusal("ff02::1", true), "string", "multicast");
  },
);

async function listen(
  t: Test,
  listener: RequestListener,
): Promise<{ port: number; seen: string[] }> {
  const seen: string[] = [];
  const sockets = new Set<Socket>();
  const server = createServer((request, response) => {
    seen.push(`${request.method} ${request.url}`);
    listener(request, response);
  });
  server.on("connection", (socket) => sockets.add(socket));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.teardown(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return { port: (server.address() as AddressInfo).port, seen };
}

function senderFor(
  t: Test,
  {
    rules = new AddressRules(LOOPBACK_NETWORKS),
    resolve = resolveHost,
    timeoutMs = 20_000,
  }: Partial<Parameters<typeof createSender>[0]> = {},
) {
  const sender = createSender({ rules, resolve, timeoutMs });
  t.teardown(() => sender.close());
  return (url: string) => sender.send({ url, headers: {}, body: "{}" });
}

t.test(
  "the reply's status determines the outcome of a request, and redirects are not followed",
  async (t) => {
    const { port, seen } = await listen(t, (request, response) => {
      const status = Number(request.url?.slice(1));
      response.writeHead(status, { "retry-after": "7", location: "/200" }).end("no");
    });
    const send = senderFor(t);
    const expected = {
      200: "accepted",
      204: "accepted",
      301: "down",
      307: "down",
      400: "rejected",
      404: "down",
      410: "gone",
      429: "down",
      500: "failed",
      503: "down",
    };
    for (const [status, verdict] of Object.entries(expected)) {
      const outcome = await send(`http://127.0.0.1:${port}/${status}`);
      t.equal(outcome.status, Number(status), `the status is ${status}`);
      t.equal(verdictOf(outcome), verdict, `${status} means ${verdict}`);
      t.equal(outcome.retryAfterMs, 7000, "Retry-After is read");
    }
    t.equal(seen.length, Object.keys(expected).length, "every request was made once");
  },
);

t.test(
  "a request fails within its time limit if the receiver hangs or closes the connection early, and a long reply is truncated",
  async (t) => {
    const { port } = await listen(t, (request, response) => {
      if (request.url === "/hang") return;
      if (request.url === "/stall") return void response.writeHead(200).write("half");
      if (request.url === "/cut") {
        response.writeHead(200, { "content-length": "100" }).write("half");
        setTimeout(() => response.destroy(), 10);
      } else if (request.url === "/endless") {
        response.writeHead(500);
        const write = () => {
          while (response.write("x".repeat(16_384)));
        };
        response.on("drain", write);
        write();
      } else response.destroy();
    });
    const send = senderFor(t);
    const base = `http://127.0.0.1:${port}`;
    const sendBriefly = senderFor(t, { timeoutMs: 200 });
    for (const path of ["/hang", "/stall"]) {
      const hanging = await sendBriefly(`${base}${path}`);
      const late = { status: 0, error: /no complete reply within 200 ms/ };
      t.match(hanging, late, `a time limit ends ${path}`);
    }
    t.match(
      await send(`${base}/cut`),
      { status: 0, error: /./ },
      "a reply that is cut short fails",
    );
    t.match(await send(`${base}/close`), { status: 0, error: /./ }, "a closed connection fails");
    const endless = await send(`${base}/endless`);
    t.match(endless, { status: 500, error: "" }, "an endless reply is read up to a limit");
    t.equal(endless.reply.length, 1024, "1 KiB of an endless reply is kept");
  },
);

t.test("each attempt checks the addresses of the receiver again", async (t) => {
  const { port, seen } = await listen(t, (_, response) => response.end());
  const rules = new AddressRules([]);
  let address = "93.184.216.34";
  const resolve = async () => [address];
  t.equal(await rules.urlRefusal(`https://rebinding.example:${port}/`, resolve), undefined);
  address = "127.0.0.1";
  const send = senderFor(t, { rules, resolve });
  for (const host of ["rebinding.example", "127.0.0.1", "[::ffff:127.0.0.1]", "[::1]"]) {
    const { status, error } = await send(`https://${host}:${port}/`);
    t.match({ status, error }, { status: 0, error: /internal address/ }, `${host} is refused`);
  }
  const mixed = senderFor(t, { rules, resolve: async () => ["93.184.216.34", "10.0.0.1"] });
  t.match(
    await mixed("https://mixed.example/"),
    { error: /10\.0\.0\.1/ },
    "one internal address is enough for a refusal",
  );
  t.strictSame(seen, [], "no request reached the receiver");
});

t.test("all requests of an HTTP client share one connector", async (t) => {
  const { port } = await listen(t, (_, response) => response.end());
  let connectors = 0;
  const outgoing = new Outgoing({
    ...{ connections: 2, timeoutMs: 20_000, maxReplyBytes: 100 },
    connector(build) {
      connectors += 1;
      return build({});
    },
  });
  t.teardown(() => outgoing.close());
  for (let at = 0; at < 3; at++) await outgoing.post(`http://127.0.0.1:${port}/`, {}, "{}");
  t.equal(connectors, 1);
});
