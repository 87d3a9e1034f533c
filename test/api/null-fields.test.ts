// Tests that null in an optional field counts as an absent field. Every optional field of every
// call in the OpenAPI document is checked, because serializers write unset fields as null
// [decisions: Values that clients really send].

import { t } from "../support/suite.ts";
import { dereferenced, type OpenApi } from "./document.ts";
import { inject, startApi } from "./harness.ts";

interface Request {
  readonly target: string;
  readonly schema: OpenApi;
  readonly example: OpenApi;
}

/** Yields the optional fields of an object schema and of the objects in it. */
function* optionalPaths(schema: OpenApi, path: readonly string[] = []): Generator<string[]> {
  for (const [name, property] of Object.entries<OpenApi>(schema.properties ?? {})) {
    if (!schema.required?.includes(name)) yield [...path, name];
    yield* optionalPaths(property, [...path, name]);
  }
}

function* requiredPaths(schema: OpenApi, path: readonly string[] = []): Generator<string[]> {
  for (const [name, property] of Object.entries<OpenApi>(schema.properties ?? {})) {
    if (!schema.required?.includes(name)) continue;
    yield [...path, name];
    yield* requiredPaths(property, [...path, name]);
  }
}

/** Returns a copy of the body with null at the path, or without the field. */
function changed(body: OpenApi, [name = "", ...rest]: readonly string[], isNull: boolean): object {
  const { [name]: inner, ...others } = body;
  if (rest.length > 0) return { ...others, [name]: changed(inner ?? {}, rest, isNull) };
  return isNull ? { ...others, [name]: null } : others;
}

const defaultDocument = (await inject(await startApi(), "GET /openapi.json")).json;

/**
 * Returns the schema of an operation's JSON body, or `undefined` if the operation has no such body.
 */
function bodyOf(document: OpenApi, path: string, method: string): OpenApi {
  const content = document.paths[path][method].requestBody?.content["application/json"];
  return content && dereferenced(content.schema, document);
}

/** Yields every call with a JSON body, whatever its method is. */
function* requestsIn(document: OpenApi): Generator<Request> {
  for (const [path, operations] of Object.entries<OpenApi>(document.paths))
    for (const method of Object.keys(operations)) {
      const schema = bodyOf(document, path, method);
      if (schema === undefined) continue;
      // The document of the default dialect has examples for schemas without an example in this
      // dialect.
      const [example] = schema.examples ?? bodyOf(defaultDocument, path, method).examples;
      yield { target: `${method.toUpperCase()} ${path}`, schema, example };
    }
}

for (const dialect of ["jindou", "wukongim"] as const)
  t.test(
    `null in an optional field counts as an absent field in the dialect ${dialect}`,
    async (t) => {
      const document = (await inject(await startApi({ dialect }), "GET /openapi.json")).json;
      let fields = 0;
      const methods = new Set<string>();
      for (const { target, schema, example } of requestsIn(document)) {
        methods.add(target.split(" ")[0] ?? "");
        // Both control planes get the same calls, so their states stay equal.
        const [api, other] = [await startApi({ dialect }), await startApi({ dialect })];
        for (const path of optionalPaths(schema)) {
          fields += 1;
          const reply = await inject(api, target, { body: changed(example, path, true) });
          const expected = await inject(other, target, { body: changed(example, path, false) });
          t.equal(reply.status, expected.status, `${target} ${path.join(".")}`);
          const [calls, expectedCalls] = [api.calls.splice(0), other.calls.splice(0)];
          t.same(calls, expectedCalls, `${target} is called without ${path.join(".")}`);
        }
      }
      t.ok(fields > 30, `${fields} optional fields`);
      t.same([...methods].sort(), ["PATCH", "POST"], "the methods with a JSON body");
    },
  );

t.test("null in a required field is rejected, and the error names the field", async (t) => {
  const document = (await inject(await startApi(), "GET /openapi.json")).json;
  for (const { target, schema, example } of requestsIn(document)) {
    const api = await startApi();
    for (const path of requiredPaths(schema)) {
      const { json } = await inject(api, target, { body: changed(example, path, true) });
      t.equal(json.status, 400, `${target} ${path.join(".")}`);
      if (json.code !== "event_type_empty") t.equal(json.details[0]?.path, path.join("."));
      t.same(api.calls, []);
    }
  }
});
