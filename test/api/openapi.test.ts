// Tests that the OpenAPI document agrees with the served routes. `inject` checks in all other tests
// that each reply matches its documented schema.

import { readFileSync } from "node:fs";
import { Compile } from "typebox/compile";
import { operationsFile } from "../../.ci/backend-client.ts";
import { withEventList } from "../../src/api/event-schemas.ts";
import { errorBody } from "../../src/api/reply-schemas.ts";
import { t } from "../support/suite.ts";
import { dereferenced, type OpenApi } from "./document.ts";
import { documentOf, inject, LIST_CALLS, SETTINGS, startApi } from "./harness.ts";

t.test(
  "GET /openapi.json returns an OpenAPI 3.1 document with exactly the served routes",
  async (t) => {
    const api = await startApi();
    const { json } = await inject(api, "GET /openapi.json");
    t.equal(json.openapi, "3.1.0");
    t.equal(json.info.version, SETTINGS.version);
    const documented = Object.entries<object>(json.paths).flatMap(([path, methods]) =>
      Object.keys(methods).map((method) => `${method.toUpperCase()} ${path}`),
    );
    const served = api.endpoint.routes.map(
      ({ method, path }) =>
        `${method} ${path.replaceAll(/:(\w+)/g, "{$1}").replace(/\*$/, "{path}")}`,
    );
    t.same(documented.sort(), served.sort());
  },
);

/**
 * Statuses that each call may return, according to the specification and the decisions. Every call
 * with a body may return 413.
 */
const STATUSES: readonly (readonly [string, readonly number[]])[] = [
  ["POST /user/token", [200, 400, 401, 403, 413, 415, 429, 500, 503]],
  ["POST /user/device_quit", [200, 400, 401, 403, 413, 415, 429, 500, 503]],
  ["POST /user/onlinestatus", [200, 400, 401, 403, 413, 415, 429, 500, 503]],
  ["GET /user/devices", [200, 400, 401, 403, 429, 500, 503]],
  ["GET /user/systemuids", [200, 400, 401, 403, 429, 500, 503]],
  ["POST /user/systemuids_add", [200, 400, 401, 403, 413, 415, 429, 500, 503]],
  ["POST /user/systemuids_remove", [200, 400, 401, 403, 413, 415, 429, 500, 503]],
  ["POST /channel", [200, 400, 401, 403, 409, 413, 415, 429, 500, 503]],
  ["POST /channel/info", [200, 400, 401, 403, 404, 413, 415, 429, 500, 503]],
  ["POST /channel/subscriber_add", [200, 400, 401, 403, 404, 413, 415, 429, 500, 503]],
  ["POST /channel/subscriber_remove", [200, 400, 401, 403, 404, 413, 415, 429, 500, 503]],
  ...["subscriber_remove_all", "delete", ...LIST_CALLS].map((name): [string, number[]] => [
    `POST /channel/${name}`,
    [200, 400, 401, 403, 404, 413, 415, 429, 500, 503],
  ]),
  ["GET /channel/state", [200, 400, 401, 403, 404, 429, 500, 503]],
  ["GET /channel/members", [200, 400, 401, 403, 429, 500, 503]],
  ["GET /channel/whitelist", [200, 400, 401, 403, 429, 500, 503]],
  ["GET /user/channels", [200, 400, 401, 403, 429, 500, 503]],
  ["POST /message/send", [200, 400, 401, 403, 409, 413, 415, 429, 500, 503]],
  ["POST /message/sendbatch", [200, 400, 401, 403, 413, 415, 429, 500, 503]],
  ["GET /channel/messages", [200, 400, 401, 403, 429, 500, 503]],
  ["POST /channel/messagesync", [200, 400, 401, 403, 413, 415, 429, 500, 503]],
  ["POST /messages", [200, 400, 401, 403, 413, 415, 429, 500, 503]],
  ["GET /channel/max_message_seq", [200, 400, 401, 403, 429, 500, 503]],
  ["GET /channel/last_message", [200, 400, 401, 403, 429, 500, 503]],
  ["POST /message", [200, 400, 401, 403, 413, 415, 429, 500, 503]],
  ["GET /message/byclientmsgno", [200, 400, 401, 403, 429, 500, 503]],
  ["POST /message/sync", [200, 400, 401, 403, 413, 415, 429, 500, 503]],
  ["POST /message/syncack", [200, 400, 401, 403, 413, 415, 429, 500, 503]],
  ["POST /event", [200, 400, 401, 403, 409, 413, 415, 429, 500, 503]],
  [
    "GET /stream/{channel_type}/{channel_id}/{client_msg_no}",
    [200, 204, 400, 401, 403, 404, 429, 500, 503],
  ],
  ["GET /v1/stream/{path}", [200, 204, 304, 400, 401, 403, 404, 410, 429, 500, 503]],
  ["PUT /v1/stream/{path}", [200, 201, 400, 401, 403, 404, 409, 413, 429, 500, 503]],
  ["POST /v1/stream/{path}", [200, 204, 400, 401, 403, 404, 409, 410, 413, 429, 500, 503]],
  ["DELETE /v1/stream/{path}", [204, 400, 401, 403, 404, 405, 410, 413, 429, 500, 503]],
  ["POST /v1/sign", [200, 400, 401, 403, 404, 413, 415, 429, 500, 503]],
  ["POST /v1/sign/rotate", [200, 400, 401, 403, 413, 429, 500, 503]],
  ["POST /webhooks", [201, 400, 401, 403, 409, 413, 415, 429, 500, 503]],
  ["GET /webhooks", [200, 400, 401, 403, 429, 500, 503]],
  ["PATCH /webhooks/{id}", [200, 400, 401, 403, 404, 409, 413, 415, 429, 500, 503]],
  ["DELETE /webhooks/{id}", [200, 400, 401, 403, 404, 409, 413, 429, 500, 503]],
  ["POST /webhooks/{id}/test", [200, 400, 401, 403, 404, 413, 429, 500, 503]],
  ["POST /webhooks/{id}/replay", [200, 400, 401, 403, 404, 409, 413, 415, 429, 500, 503]],
  ["POST /webhooks/{id}/secrets", [200, 400, 401, 403, 404, 409, 413, 415, 429, 500, 503]],
  ["GET /webhooks/{id}/attempts", [200, 400, 401, 403, 404, 429, 500, 503]],
  ["GET /webhooks/{id}/failures", [200, 400, 401, 403, 404, 429, 500, 503]],
  ["POST /webhooks/{id}/failures/{event_id}/retry", [200, 400, 401, 403, 404, 413, 429, 500, 503]],
  ["POST /conversation/sync", [200, 400, 401, 403, 413, 415, 429, 500, 503]],
  ["POST /conversation/channels", [200, 400, 401, 403, 413, 415, 429, 500, 503]],
  ["POST /conversation/syncByChannels", [200, 400, 401, 403, 413, 415, 429, 500, 503]],
  ["POST /conversations/clearUnread", [200, 400, 401, 403, 404, 413, 415, 429, 500, 503]],
  ["POST /conversations/setUnread", [200, 400, 401, 403, 404, 413, 415, 429, 500, 503]],
  ["POST /conversations/delete", [200, 400, 401, 403, 404, 413, 415, 429, 500, 503]],
  ["POST /manager/login", [200, 400, 401, 403, 413, 415, 429, 500, 503]],
  ["POST /manager/logout", [200, 400, 401, 413, 500, 503]],
  ["GET /cluster/nodes", [200, 400, 401, 403, 429, 500, 503]],
  ["GET /route", [200, 400, 401, 403, 429, 500, 503]],
  ["POST /route/batch", [200, 400, 401, 403, 413, 415, 429, 500, 503]],
  ["POST /conn/kick", [200, 400, 401, 403, 413, 415, 429, 500, 503]],
  ["GET /channel/readers", [200, 400, 401, 403, 429, 500, 503]],
  ["POST /stream/cancel", [200, 400, 401, 403, 404, 413, 415, 429, 500, 503]],
  ["GET /channels/busiest", [200, 400, 401, 403, 429, 500, 503]],
  ["GET /admin/config", [200, 400, 401, 403, 429, 500, 503]],
  ["GET /admin/errors", [200, 400, 401, 403, 429, 500, 503]],
  ["GET /events", [200, 400, 401, 403, 409, 410, 429, 500, 503]],
  ["POST /events/feed", [200, 400, 401, 403, 413, 415, 429, 500, 503]],
  ["GET /admin/import", [200, 400, 401, 403, 429, 500, 503]],
  ["POST /admin/import", [200, 400, 401, 403, 409, 413, 415, 429, 500, 503]],
  ["POST /admin/import/open", [200, 400, 401, 403, 409, 413, 429, 500, 503]],
  ["POST /admin/import/close", [200, 400, 401, 403, 409, 413, 429, 500, 503]],
  ["GET /connz", [200, 400, 401, 403, 429, 500, 503]],
  ["GET /", [200, 303, 400, 500]],
  ["GET /migrate/result", [200, 400, 401, 403, 429, 500, 503]],
  ["GET /healthz", [200, 400, 500]],
  ["GET /readyz", [200, 400, 500, 503]],
  ["GET /health", [200, 400, 401, 429, 500, 503]],
  ["GET /varz", [200, 400, 401, 403, 429, 500, 503]],
  ["GET /metrics", [200, 400, 401, 403, 429, 500, 503]],
  ["GET /openapi.json", [200, 400, 401, 429, 500, 503]],
];

t.test("each call is documented with exactly the statuses that it may return", async (t) => {
  const { endpoint } = await startApi();
  const { paths } = await documentOf(endpoint);
  const documented = Object.entries<Record<string, { responses: object }>>(paths).flatMap(
    ([path, methods]) =>
      Object.entries(methods).map(([method, { responses }]) => [
        `${method.toUpperCase()} ${path}`,
        Object.keys(responses).map(Number),
      ]),
  );
  t.same(Object.fromEntries(documented), Object.fromEntries(STATUSES));
  t.equal(documented.length, STATUSES.length);
  for (const [call, statuses] of STATUSES)
    if (call.startsWith("POST")) t.ok(statuses.includes(413), call);
});

t.test(
  "in the OpenAPI document, all errors have the same schema, operation ids are unique, and each operation lists the permissions that it needs",
  async (t) => {
    const { endpoint } = await startApi();
    const { paths, components } = await documentOf(endpoint);
    const { title, ...error } = JSON.parse(JSON.stringify(errorBody));
    t.equal(title, "Error");
    t.same(components.schemas.Error, error);
    const ids = new Set<string>();
    const operations = Object.values<object>(paths).flatMap((methods) => Object.values(methods));
    for (const { operationId, responses } of operations) {
      ids.add(operationId);
      for (const [status, response] of Object.entries<{ content: object }>(responses))
        if (Number(status) >= 400)
          t.same(response.content, {
            "application/json": {
              schema: { $ref: "#/components/schemas/Error" },
            },
          });
    }
    t.equal(ids.size, operations.length);
    t.same(paths["/message/send"].post["x-permissions"], ["messages:write"]);
  },
);

t.test("the OpenAPI document lists the credentials that each call accepts", async (t) => {
  const document = async (requiresCredential: boolean) => {
    const api = await startApi({ requiresCredential });
    const headers = { authorization: await api.login() };
    return (await inject(api, "GET /openapi.json", { headers })).json;
  };
  const openDocument = await document(false);
  const protectedDocument = await document(true);
  const both = [{ bearer: [] }, { staticToken: [] }];
  t.same(Object.keys(openDocument.components.securitySchemes), [
    "bearer",
    "staticToken",
    "deviceToken",
    "signedUrl",
  ]);
  t.same(openDocument.paths["/channel"].post.security, [{}, ...both]);
  t.same(protectedDocument.paths["/channel"].post.security, both);
  const stream = "/stream/{channel_type}/{channel_id}/{client_msg_no}";
  const viewer = { deviceToken: [] };
  t.same(protectedDocument.paths[stream].get.security, [...both, viewer]);
  t.same(openDocument.paths[stream].get.security, [{}, ...both, viewer]);
  t.same(protectedDocument.paths["/manager/login"].post.security, []);
  t.same(protectedDocument.paths["/readyz"].get.security, []);
  t.same(protectedDocument.paths["/manager/logout"].post.security, [{ bearer: [] }]);
});

t.test(
  "in the OpenAPI document, the channel and the name of a stream are path parameters, and a reply with 204 has no body",
  async (t) => {
    const { endpoint } = await startApi();
    const { paths } = await documentOf(endpoint);
    const { parameters, responses } =
      paths["/stream/{channel_type}/{channel_id}/{client_msg_no}"].get;
    const pathParameters = parameters.filter(
      (parameter: { in: string }) => parameter.in === "path",
    );
    t.same(
      pathParameters.map(({ name, required }: { name: string; required: boolean }) => [
        name,
        required,
      ]),
      [
        ["channel_type", true],
        ["channel_id", true],
        ["client_msg_no", true],
      ],
    );
    t.ok(responses[200].content["text/event-stream"]);
    t.notOk(responses[204].content);
  },
);

t.test(
  "the bodies and replies in the OpenAPI document have named schemas and valid examples",
  async (t) => {
    const { endpoint } = await startApi();
    const document = await documentOf(endpoint);
    const operations = Object.values<OpenApi>(document.paths).flatMap((methods) =>
      Object.values<OpenApi>(methods),
    );
    const schemas = operations.flatMap(({ requestBody, responses }) =>
      [requestBody, ...Object.values<OpenApi>(responses)]
        .map((message) => message?.content?.["application/json"]?.schema)
        .filter((schema) => schema !== undefined),
    );
    t.ok(schemas.length > 40, "the document has more than 40 schemas");
    const unnamed = schemas.filter((schema) => schema.$ref === undefined);
    t.same(unnamed, [{}], "all schemas are named, except that of the document itself");
    for (const [name, schema] of Object.entries(document.components.schemas)) {
      const resolved = dereferenced(schema, document);
      t.ok(resolved.examples?.length > 0, `the schema ${name} has an example`);
      const validator = Compile(resolved);
      for (const example of resolved.examples)
        t.ok(validator.Check(example), `the example of ${name} is valid`);
    }
  },
);

/** Matches the verb at the beginning of an operation id. */
const VERBS =
  /^(acknowledge|add|append|cancel|check|clear|create|delete|find|get|close|import|kick|list|log|login|logout|open|read|remove|rotate|send|set|sign|sync|update)(?=[A-Z]|$)/;

for (const dialect of ["jindou", "wukongim"] as const) {
  t.test(
    `the operation ids in the OpenAPI document of the dialect ${dialect} are method names that begin with a verb`,
    async (t) => {
      const { paths } = await documentOf((await startApi({ dialect })).endpoint);
      const operations = Object.values<object>(paths).flatMap((methods) => Object.values(methods));
      for (const { operationId } of operations) t.match(operationId, VERBS);
      t.equal(paths["/message/send"].post.operationId, "sendMessage");
      t.equal(paths["/channel/blacklist_remove_all"].post.operationId, "clearBlacklist");
    },
  );

  t.test(
    `in the OpenAPI document of the dialect ${dialect}, each operation, parameter, schema and field has a description`,
    async (t) => {
      const document = await documentOf((await startApi({ dialect })).endpoint);
      const operations = Object.values<OpenApi>(document.paths).flatMap((methods) =>
        Object.values<OpenApi>(methods),
      );
      for (const { operationId, summary, parameters = [] } of operations) {
        t.match(summary, /^[A-Z].+/, operationId);
        for (const { name, description } of parameters) t.match(description, /^\S.+/, name);
      }
      for (const [name, schema] of Object.entries(document.components.schemas)) {
        t.match((schema as OpenApi).description, /^\S.+/, name);
        for (const [path, field] of fieldsIn(schema, name)) t.match(field.description, /^\S/, path);
      }
    },
  );

  t.test(
    `in the OpenAPI document of the dialect ${dialect}, no field or parameter of a request has a default value, so that generated clients do not require optional fields`,
    async (t) => {
      const { paths, components } = await documentOf((await startApi({ dialect })).endpoint);
      t.notMatch(JSON.stringify([paths, components]), /"default":/);
    },
  );
}

/** Yields all fields of a schema and of its nested schemas, with their paths. */
function* fieldsIn(schema: OpenApi, path: string): Generator<[path: string, field: OpenApi]> {
  if (typeof schema !== "object" || schema === null) return;
  for (const [name, field] of Object.entries<OpenApi>(schema.properties ?? {})) {
    yield [`${path}.${name}`, field];
    yield* fieldsIn(field, `${path}.${name}`);
  }
  yield* fieldsIn(schema.items, `${path}[]`);
}

t.test("the OpenAPI document contains the configured `maxSubscribersPerCall`", async (t) => {
  const { endpoint } = await startApi({ maxSubscribersPerCall: 5 });
  const document = await documentOf(endpoint);
  const body = (path: string) =>
    dereferenced(
      document.paths[path].post.requestBody.content["application/json"].schema,
      document,
    );
  t.equal(body("/channel").properties.subscribers.maxItems, 5);
  t.equal(body("/message/send").properties.subscribers.maxItems, 5);
  t.equal(body("/user/onlinestatus").maxItems, 10_000);
  t.same(body("/user/token").required, ["uid", "token", "device_flag"]);
});

t.test("the package jindou-server has the same calls as the OpenAPI document", async (t) => {
  const file = new URL("../../src/backend/operations.ts", import.meta.url);
  t.equal(readFileSync(file, "utf8"), operationsFile(), "npm run config:docs");
});

t.test("the guide to the event feed lists every event type of the OpenAPI document", async (t) => {
  const page = readFileSync(new URL("../../docs/events.md", import.meta.url), "utf8");
  t.equal(page, withEventList(page), "npm run config:docs");
  const { json } = await inject(await startApi(), "GET /openapi.json");
  const types = Object.keys(json.webhooks);
  t.ok(types.length > 9);
  for (const type of types) t.ok(page.includes(`| \`${type}\` |`), type);
});
