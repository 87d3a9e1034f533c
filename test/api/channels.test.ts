// Tests of the endpoints below /channel: channels, their subscribers and their lists.

import { BrokerError, type ErrorCode } from "../../src/broker/errors.ts";
import { t } from "../support/suite.ts";
import { inject, startApi, type TestApi } from "./harness.ts";

const GROUP = { channel_id: "g1", channel_type: 2 };
const REF = { id: "g1", type: 2 };

/** Makes a call whose use case throws an error with this code. Returns the status and the code. */
async function rejection(api: TestApi, target: string, code: ErrorCode) {
  api.failure = new BrokerError(code);
  const body = { ...GROUP, subscribers: ["a"] };
  const { status, json } = await inject(api, target, { body });
  return `${status} ${json.code}`;
}

t.test("by default, POST /channel sets only client_events and adds no subscriber", async (t) => {
  const api = await startApi();
  const answer = await inject(api, "POST /channel", { body: GROUP });
  t.equal(answer.text, '{"status":"ok"}');
  const off = { ban: false, disband: false, sendBan: false };
  const info = { ...REF, ...off, allowStranger: false, large: false, clientEvents: true };
  t.same(api.calls, [{ call: "create", args: [info, []] }]);
});

t.test("POST /channel passes every flag and the subscribers on to the broker", async (t) => {
  const api = await startApi();
  const flags = {
    ban: 1,
    disband: 1,
    send_ban: 1,
    allow_stranger: 1,
    large: 1,
    client_events: 1,
  };
  const body = {
    channel_id: "u1",
    channel_type: 1,
    ...flags,
    subscribers: ["a", "b"],
  };
  await inject(api, "POST /channel", { body });
  const on = { ban: true, disband: true, sendBan: true };
  const info = {
    ...{ id: "u1", type: 1, ...on, allowStranger: true },
    ...{ large: true, clientEvents: true },
  };
  t.same(api.calls, [{ call: "create", args: [info, ["a", "b"]] }]);
});

t.test("POST /channel is rejected with 409 if the channel exists", async (t) => {
  const api = await startApi();
  t.equal(await rejection(api, "POST /channel", "channel_exists"), "409 channel_exists");
});

for (const path of ["/channel", "/channel/info"])
  t.test(
    `POST ${path} rejects flags other than the integers 0 and 1, and channel types other than 1 and 2, with 400`,
    async (t) => {
      const api = await startApi();
      const names = ["ban", "disband", "send_ban", "allow_stranger", "large", "client_events"];
      for (const name of names)
        for (const value of [2, -1, 0.5, true, "1"]) {
          const body = { ...GROUP, [name]: value };
          const { status, json } = await inject(api, `POST ${path}`, { body });
          t.equal(status, 400, `${name} ${value} is rejected`);
          t.match(json.details, [{ path: name }]);
        }
      for (const channel_type of [0, 3, "2", undefined]) {
        const body = { ...GROUP, channel_type };
        const { json } = await inject(api, `POST ${path}`, { body });
        t.match(json, { status: 400, details: [{ path: "channel_type" }] });
      }
      t.same(api.calls, []);
    },
  );

t.test(
  "POST /channel rejects more than 10000 subscribers, or a subscriber with an invalid uid, with 400",
  async (t) => {
    const api = await startApi();
    const tooMany = Array.from({ length: 10_001 }, (_, i) => `u${i}`);
    for (const [subscribers, path] of [
      [tooMany, "subscribers"],
      [["a", ""], "subscribers.1"],
      ["a", "subscribers"],
    ]) {
      const { status, json } = await inject(api, "POST /channel", {
        body: { ...GROUP, subscribers },
      });
      t.equal(status, 400);
      t.match(json.details, [{ path }]);
    }
    t.same(api.calls, []);
    const body = { ...GROUP, subscribers: tooMany.slice(1) };
    t.equal((await inject(api, "POST /channel", { body })).status, 200);
  },
);

t.test("POST /channel/info changes only the flags in the body", async (t) => {
  const api = await startApi();
  await inject(api, "POST /channel/info", {
    body: { ...GROUP, ban: 1, send_ban: 0 },
  });
  await inject(api, "POST /channel/info", {
    body: { ...GROUP, disband: 1, allow_stranger: 1, large: 0, client_events: 0 },
  });
  await inject(api, "POST /channel/info", { body: GROUP });
  t.same(
    api.calls.map(({ args }) => args),
    [
      [REF, { ban: true, sendBan: false }],
      [REF, { disband: true, allowStranger: true, large: false, clientEvents: false }],
      [REF, {}],
    ],
  );
});

t.test("POST /channel/info returns ok, or 404 if the channel does not exist", async (t) => {
  const api = await startApi();
  const answer = await inject(api, "POST /channel/info", { body: GROUP });
  t.equal(answer.text, '{"status":"ok"}');
  t.equal(await rejection(api, "POST /channel/info", "channel_not_found"), "404 channel_not_found");
});

t.test(
  "POST /channel/subscriber_add adds permanent subscribers to a group by default",
  async (t) => {
    const api = await startApi();
    const add = (body: object) => inject(api, "POST /channel/subscriber_add", { body });
    t.equal((await add({ channel_id: "g1", subscribers: ["a"] })).text, '{"status":"ok"}');
    await add({
      channel_id: "u1",
      channel_type: 1,
      subscribers: [],
      reset: 1,
      temp_subscriber: 1,
    });
    t.same(
      api.calls.map(({ args }) => args),
      [
        [REF, ["a"], { membership: "permanent", reset: false }],
        [{ id: "u1", type: 1 }, [], { membership: "temporary", reset: true }],
      ],
    );
  },
);

t.test(
  "POST /channel/subscriber_add rejects a missing list, or an empty list without reset, with 400",
  async (t) => {
    const api = await startApi();
    for (const body of [
      GROUP,
      { ...GROUP, subscribers: [] },
      { ...GROUP, subscribers: [], reset: 0 },
    ]) {
      const { json } = await inject(api, "POST /channel/subscriber_add", {
        body,
      });
      t.match(json, { status: 400, details: [{ path: "subscribers" }] });
    }
    t.same(api.calls, []);
  },
);

t.test(
  "POST /channel/subscriber_add is rejected with 404 if the channel does not exist, and with 403 if it is disbanded",
  async (t) => {
    const api = await startApi();
    const target = "POST /channel/subscriber_add";
    t.equal(await rejection(api, target, "channel_not_found"), "404 channel_not_found");
    t.equal(await rejection(api, target, "channel_disbanded"), "403 channel_disbanded");
  },
);

t.test(
  "POST /channel/subscriber_remove removes permanent subscribers, or temporary subscribers if temp_subscriber is 1",
  async (t) => {
    const api = await startApi();
    const remove = (body: object) => inject(api, "POST /channel/subscriber_remove", { body });
    t.equal((await remove({ ...GROUP, subscribers: ["a", "b"] })).text, '{"status":"ok"}');
    await remove({ ...GROUP, subscribers: ["a"], temp_subscriber: 0 });
    await remove({ ...GROUP, subscribers: ["a"], temp_subscriber: 1 });
    t.same(
      api.calls.map(({ args }) => args),
      [
        [REF, ["a", "b"], "permanent"],
        [REF, ["a"], "permanent"],
        [REF, ["a"], "temporary"],
      ],
    );
  },
);

t.test("POST /channel/subscriber_remove rejects a missing or empty list with 400", async (t) => {
  const api = await startApi();
  for (const body of [
    GROUP,
    { ...GROUP, subscribers: [] },
    { ...GROUP, subscribers: null },
    { ...GROUP, subscribers: ["a"], temp_subscriber: 2 },
  ])
    t.equal((await inject(api, "POST /channel/subscriber_remove", { body })).status, 400);
  t.same(api.calls, []);
});

t.test(
  "POST /channel/subscriber_remove is rejected with 404 if the channel does not exist or a uid is not a subscriber, and with 403 if the channel is disbanded",
  async (t) => {
    const api = await startApi();
    const target = "POST /channel/subscriber_remove";
    t.equal(await rejection(api, target, "channel_not_found"), "404 channel_not_found");
    t.equal(await rejection(api, target, "not_in_channel"), "404 not_in_channel");
    t.equal(await rejection(api, target, "channel_disbanded"), "403 channel_disbanded");
  },
);

for (const [wire, list] of [
  ["blacklist", "denylist"],
  ["whitelist", "allowlist"],
] as const) {
  t.test(`the calls POST /channel/${wire}_… change the ${list}`, async (t) => {
    const api = await startApi();
    const uids = ["a", "b"];
    const owner = { channel_id: "u1", channel_type: 1 };
    for (const [name, body] of [
      ["add", { ...GROUP, uids }],
      ["set", { ...GROUP, uids }],
      ["set", { ...owner, uids: [] }],
      ["remove", { ...owner, uids }],
      ["remove_all", GROUP],
    ] as const) {
      const answer = await inject(api, `POST /channel/${wire}_${name}`, {
        body,
      });
      t.equal(answer.text, '{"status":"ok"}', name);
    }
    const person = { id: "u1", type: 1 };
    t.same(
      api.calls.map(({ args }) => args),
      [
        [REF, list, { kind: "add", uids }],
        [REF, list, { kind: "replace", uids }],
        [person, list, { kind: "replace", uids: [] }],
        [person, list, { kind: "remove", uids }],
        [REF, list, { kind: "replace", uids: [] }],
      ],
    );
  });

  t.test(
    `the calls POST /channel/${wire}_… reject missing, invalid or too many uids with 400, except _remove_all`,
    async (t) => {
      const api = await startApi();
      const tooMany = Array.from({ length: 10_001 }, (_, i) => `u${i}`);
      for (const name of ["add", "set", "remove"])
        for (const uids of [undefined, "a", [""], [1], tooMany]) {
          const target = `POST /channel/${wire}_${name}`;
          const { status } = await inject(api, target, {
            body: { ...GROUP, uids },
          });
          t.equal(status, 400, `${name} rejects the uids ${JSON.stringify(uids)?.slice(0, 20)}`);
        }
      for (const name of ["add", "remove"]) {
        const target = `POST /channel/${wire}_${name}`;
        const body = { ...GROUP, uids: [] };
        t.equal((await inject(api, target, { body })).status, 400, name);
      }
      t.same(api.calls, []);
      t.equal(
        await rejection(api, `POST /channel/${wire}_remove_all`, "channel_not_found"),
        "404 channel_not_found",
      );
    },
  );
}

t.test(
  "POST /channel/subscriber_remove_all removes all subscribers, and POST /channel/delete disbands a group",
  async (t) => {
    const api = await startApi();
    const removeAll = "POST /channel/subscriber_remove_all";
    t.equal((await inject(api, removeAll, { body: GROUP })).text, '{"status":"ok"}');
    const remove = "POST /channel/delete";
    t.equal((await inject(api, remove, { body: GROUP })).text, '{"status":"ok"}');
    t.same(api.calls, [
      { call: "removeAllSubscribers", args: [REF] },
      { call: "update", args: [REF, { disband: true }] },
    ]);
    const person = { channel_id: "u1", channel_type: 1 };
    const { status, json } = await inject(api, remove, { body: person });
    t.match([status, json.details], [400, [{ path: "channel_type" }]]);
    t.equal(await rejection(api, remove, "channel_not_found"), "404 channel_not_found");
    t.equal(await rejection(api, removeAll, "channel_disbanded"), "403 channel_disbanded");
  },
);

t.test(
  "GET /channel/state returns a channel's flags, the size of each of its lists and its newest seq",
  async (t) => {
    const api = await startApi();
    const target = "GET /channel/state";
    const query = "channel_id=g1&channel_type=2";
    const { json } = await inject(api, `${target}?${query}`);
    t.same(json, {
      ...GROUP,
      ...{ ban: 1, disband: 0, send_ban: 0, allow_stranger: 0, large: 1, client_events: 0 },
      ...{ subscriber_count: 3, blacklist_count: 2, whitelist_count: 1 },
      last_message_seq: 9,
    });
    t.same(api.calls, [{ call: "state", args: [REF] }]);
    api.failure = new BrokerError("channel_not_found");
    t.equal((await inject(api, `${target}?${query}`)).status, 404);
    t.equal((await inject(api, `${target}?channel_id=g1`)).status, 400);
  },
);

t.test(
  "GET /channel/members and /user/channels return pages with their last id as the cursor, or an empty cursor on the last page",
  async (t) => {
    const api = await startApi();
    const read = async (target: string, query: string) =>
      (await inject(api, `GET ${target}?${query}`)).json;
    const channel = "channel_id=g1&channel_type=2";
    const page = { uids: ["a", "b"], cursor: "b" };
    t.same(await read("/channel/members", channel), page);
    const nextPage = "&list=blacklist&limit=2&cursor=b";
    api.ids = { ids: ["c"], more: false, total: 3 };
    const lastPage = { uids: ["c"], cursor: "" };
    t.same(await read("/channel/members", channel + nextPage), lastPage);
    await read("/channel/members", `${channel}&list=whitelist&limit=10000`);
    t.same(await read("/user/channels", "uid=u&limit=1"), {
      channels: [{ channel_id: "c", channel_type: 2 }],
      cursor: "",
    });
    t.same(await read("/channel/whitelist", channel), [{ uid: "c" }]);
    t.same(
      api.calls.map(({ args }) => args),
      [
        [REF, "members", { after: "", limit: 1000 }],
        [REF, "denylist", { after: "b", limit: 2 }],
        [REF, "allowlist", { after: "", limit: 10_000 }],
        ["u", { after: "", limit: 1 }],
        [REF, "allowlist", { after: "", limit: 10_000 }],
      ],
    );
    for (const invalid of ["limit=0", "limit=10001", "list=all", "cursor=a%40"]) {
      const query = `${channel}&${invalid}`;
      const target = "GET /channel/members";
      t.equal((await inject(api, `${target}?${query}`)).status, 400, invalid);
    }
  },
);
