// The calls about channels: /channel, /channel/info, /channel/subscriber_add,
// /channel/subscriber_remove.

import { BrokerError, type ErrorCode } from "../../src/broker/errors.ts";
import { t } from "../support/suite.ts";
import { inject, startApi, type TestApi } from "./harness.ts";

const GROUP = { channel_id: "g1", channel_type: 2 };
const REF = { id: "g1", type: 2 };

async function refused(api: TestApi, target: string, code: ErrorCode) {
  api.thrown = new BrokerError(code);
  const body = { ...GROUP, subscribers: ["a"] };
  const { status, json } = await inject(api, target, { body });
  return `${status} ${json.code}`;
}

t.test("POST /channel: absent flags are 0 and subscribers none [spec: Channel]", async (t) => {
  const api = await startApi();
  const answer = await inject(api, "POST /channel", { body: GROUP });
  t.equal(answer.text, '{"status":"ok"}');
  const off = { ban: false, disband: false, sendBan: false };
  const info = { ...REF, ...off, allowStranger: false, large: false };
  t.same(api.asked, [{ call: "create", args: [info, []] }]);
});

t.test("POST /channel: every flag and the subscribers are passed on [spec: Channel]", async (t) => {
  const api = await startApi();
  const flags = {
    ban: 1,
    disband: 1,
    send_ban: 1,
    allow_stranger: 1,
    large: 1,
  };
  const body = {
    channel_id: "u1",
    channel_type: 1,
    ...flags,
    subscribers: ["a", "b"],
  };
  await inject(api, "POST /channel", { body });
  const on = { ban: true, disband: true, sendBan: true };
  const info = { id: "u1", type: 1, ...on, allowStranger: true, large: true };
  t.same(api.asked, [{ call: "create", args: [info, ["a", "b"]] }]);
});

t.test("POST /channel: a taken id is 409 [spec: POST /channel]", async (t) => {
  const api = await startApi();
  t.equal(await refused(api, "POST /channel", "channel_exists"), "409 channel_exists");
});

for (const path of ["/channel", "/channel/info"])
  t.test(
    `POST ${path}: flags are the integers 0 and 1, the type 1 or 2, else 400 [spec: Channel]`,
    async (t) => {
      const api = await startApi();
      const names = ["ban", "disband", "send_ban", "allow_stranger", "large"];
      for (const name of names)
        for (const value of [2, -1, 0.5, true, "1", null]) {
          const body = { ...GROUP, [name]: value };
          const { status, json } = await inject(api, `POST ${path}`, { body });
          t.equal(status, 400, `${name} ${value}`);
          t.match(json.details, [{ path: name }]);
        }
      for (const channel_type of [0, 3, "2", undefined]) {
        const body = { ...GROUP, channel_type };
        const { json } = await inject(api, `POST ${path}`, { body });
        t.match(json, { status: 400, details: [{ path: "channel_type" }] });
      }
      t.same(api.asked, []);
    },
  );

t.test(
  "POST /channel: more than 10000 subscribers, or one that is no id, are refused with 400 [decisions: Limits]",
  async (t) => {
    const api = await startApi();
    const many = Array.from({ length: 10_001 }, (_, i) => `u${i}`);
    for (const [subscribers, path] of [
      [many, "subscribers"],
      [["a", ""], "subscribers.1"],
      ["a", "subscribers"],
      [null, "subscribers"],
    ]) {
      const { status, json } = await inject(api, "POST /channel", {
        body: { ...GROUP, subscribers },
      });
      t.equal(status, 400);
      t.match(json.details, [{ path }]);
    }
    t.same(api.asked, []);
    const body = { ...GROUP, subscribers: many.slice(1) };
    t.equal((await inject(api, "POST /channel", { body })).status, 200);
  },
);

t.test("POST /channel/info: changes only the flags that are sent", async (t) => {
  const api = await startApi();
  await inject(api, "POST /channel/info", {
    body: { ...GROUP, ban: 1, send_ban: 0 },
  });
  await inject(api, "POST /channel/info", {
    body: { ...GROUP, disband: 1, allow_stranger: 1, large: 0 },
  });
  await inject(api, "POST /channel/info", { body: GROUP });
  t.same(
    api.asked.map((one) => one.args),
    [
      [REF, { ban: true, sendBan: false }],
      [REF, { disband: true, allowStranger: true, large: false }],
      [REF, {}],
    ],
  );
});

t.test(
  "POST /channel/info: answers status ok; 404 for a channel that does not exist",
  async (t) => {
    const api = await startApi();
    const answer = await inject(api, "POST /channel/info", { body: GROUP });
    t.equal(answer.text, '{"status":"ok"}');
    t.equal(await refused(api, "POST /channel/info", "channel_not_found"), "404 channel_not_found");
  },
);

t.test(
  "POST /channel/subscriber_add: group, permanent and adding to the list unless said otherwise",
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
      api.asked.map((one) => one.args),
      [
        [REF, ["a"], { membership: "permanent", reset: false }],
        [{ id: "u1", type: 1 }, [], { membership: "temporary", reset: true }],
      ],
    );
  },
);

t.test(
  "POST /channel/subscriber_add: no subscribers, or an empty list without reset, are refused with 400",
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
    t.same(api.asked, []);
  },
);

t.test("POST /channel/subscriber_add: 404 for no channel, 403 for a disbanded one", async (t) => {
  const api = await startApi();
  const target = "POST /channel/subscriber_add";
  t.equal(await refused(api, target, "channel_not_found"), "404 channel_not_found");
  t.equal(await refused(api, target, "channel_disbanded"), "403 channel_disbanded");
});

t.test(
  "POST /channel/subscriber_remove: temp_subscriber names the membership, 0 by default [spec: POST /channel/subscriber_remove]",
  async (t) => {
    const api = await startApi();
    const remove = (body: object) => inject(api, "POST /channel/subscriber_remove", { body });
    t.equal((await remove({ ...GROUP, subscribers: ["a", "b"] })).text, '{"status":"ok"}');
    await remove({ ...GROUP, subscribers: ["a"], temp_subscriber: 0 });
    await remove({ ...GROUP, subscribers: ["a"], temp_subscriber: 1 });
    t.same(
      api.asked.map((one) => one.args),
      [
        [REF, ["a", "b"], "permanent"],
        [REF, ["a"], "permanent"],
        [REF, ["a"], "temporary"],
      ],
    );
  },
);

t.test(
  "POST /channel/subscriber_remove: subscribers are required and not empty, 400 [decisions: subscriber_remove]",
  async (t) => {
    const api = await startApi();
    for (const body of [
      GROUP,
      { ...GROUP, subscribers: [] },
      { ...GROUP, subscribers: null },
      { ...GROUP, subscribers: ["a"], temp_subscriber: 2 },
    ])
      t.equal((await inject(api, "POST /channel/subscriber_remove", { body })).status, 400);
    t.same(api.asked, []);
  },
);

t.test(
  "POST /channel/subscriber_remove: 404 for no channel or no member, 403 for a disbanded channel [spec: POST /channel/subscriber_remove]",
  async (t) => {
    const api = await startApi();
    const target = "POST /channel/subscriber_remove";
    t.equal(await refused(api, target, "channel_not_found"), "404 channel_not_found");
    t.equal(await refused(api, target, "not_in_channel"), "404 not_in_channel");
    t.equal(await refused(api, target, "channel_disbanded"), "403 channel_disbanded");
  },
);

for (const [wire, list] of [
  ["blacklist", "denylist"],
  ["whitelist", "allowlist"],
] as const) {
  t.test(`POST /channel/${wire}_…: changes the ${list}`, async (t) => {
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
      api.asked.map(({ args }) => args),
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
    `POST /channel/${wire}_…: uids are ids, not too many, and required but for _remove_all`,
    async (t) => {
      const api = await startApi();
      const many = Array.from({ length: 10_001 }, (_, i) => `u${i}`);
      for (const name of ["add", "set", "remove"])
        for (const uids of [undefined, "a", [""], [1], many]) {
          const target = `POST /channel/${wire}_${name}`;
          const { status } = await inject(api, target, {
            body: { ...GROUP, uids },
          });
          t.equal(status, 400, `${name} ${JSON.stringify(uids)?.slice(0, 20)}`);
        }
      for (const name of ["add", "remove"]) {
        const target = `POST /channel/${wire}_${name}`;
        const body = { ...GROUP, uids: [] };
        t.equal((await inject(api, target, { body })).status, 400, name);
      }
      t.same(api.asked, []);
      t.equal(
        await refused(api, `POST /channel/${wire}_remove_all`, "channel_not_found"),
        "404 channel_not_found",
      );
    },
  );
}

t.test("POST /channel/subscriber_remove_all and /channel/delete name a channel only", async (t) => {
  const api = await startApi();
  const all = "POST /channel/subscriber_remove_all";
  t.equal((await inject(api, all, { body: GROUP })).text, '{"status":"ok"}');
  const remove = "POST /channel/delete";
  t.equal((await inject(api, remove, { body: GROUP })).text, '{"status":"ok"}');
  t.same(api.asked, [
    { call: "removeAllSubscribers", args: [REF] },
    { call: "update", args: [REF, { disband: true }] },
  ]);
  const person = { channel_id: "u1", channel_type: 1 };
  const { status, json } = await inject(api, remove, { body: person });
  t.match([status, json.details], [400, [{ path: "channel_type" }]]);
  t.equal(await refused(api, remove, "channel_not_found"), "404 channel_not_found");
  t.equal(await refused(api, all, "channel_disbanded"), "403 channel_disbanded");
});

t.test("GET /channel/state: the flags, and how many users are in it", async (t) => {
  const api = await startApi();
  const target = "GET /channel/state";
  const query = "channel_id=g1&channel_type=2";
  const { json } = await inject(api, `${target}?${query}`);
  t.same(json, {
    ...GROUP,
    ...{ ban: 1, disband: 0, send_ban: 0, allow_stranger: 0, large: 1 },
    ...{ subscriber_count: 3, blacklist_count: 2, whitelist_count: 1 },
    last_message_seq: 9,
  });
  t.same(api.asked, [{ call: "state", args: [REF] }]);
  api.thrown = new BrokerError("channel_not_found");
  t.equal((await inject(api, `${target}?${query}`)).status, 404);
  t.equal((await inject(api, `${target}?channel_id=g1`)).status, 400);
});

t.test("GET /channel/members and /user/channels: pages, whose cursor is the last id", async (t) => {
  const api = await startApi();
  const read = async (target: string, query: string) =>
    (await inject(api, `GET ${target}?${query}`)).json;
  const channel = "channel_id=g1&channel_type=2";
  const page = { uids: ["a", "b"], cursor: "b" };
  t.same(await read("/channel/members", channel), page);
  const next = "&list=blacklist&limit=2&cursor=b";
  api.ids = { ids: ["c"], more: false };
  const last = { uids: ["c"], cursor: "" };
  t.same(await read("/channel/members", channel + next), last);
  await read("/channel/members", `${channel}&list=whitelist&limit=10000`);
  t.same(await read("/user/channels", "uid=u&limit=1"), {
    channels: [{ channel_id: "c", channel_type: 2 }],
    cursor: "",
  });
  t.same(await read("/channel/whitelist", channel), [{ uid: "c" }]);
  t.same(
    api.asked.map(({ args }) => args),
    [
      [REF, "members", { after: "", limit: 1000 }],
      [REF, "denylist", { after: "b", limit: 2 }],
      [REF, "allowlist", { after: "", limit: 10_000 }],
      ["u", { after: "", limit: 1 }],
      [REF, "allowlist", { after: "", limit: 10_000 }],
    ],
  );
  for (const wrong of ["limit=0", "limit=10001", "list=all", "cursor=a%40"]) {
    const query = `${channel}&${wrong}`;
    const target = "GET /channel/members";
    t.equal((await inject(api, `${target}?${query}`)).status, 400, wrong);
  }
});
