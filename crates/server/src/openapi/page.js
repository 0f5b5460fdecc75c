"use strict";
(async () => {
  const api = await (await fetch("/openapi.json")).json();
  const at = path => path.slice(2).split("/").reduce((it, part) => it[part], api);
  const deref = it => it && it.$ref ? at(it.$ref) : it || {};
  const nameOf = it => it.$ref.split("/").pop();

  // Text is only ever set as text: nothing in the document becomes markup.
  const make = (tag, attributes, ...children) => {
    const it = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) it.setAttribute(name, value);
    for (const child of children.flat()) if (child != null) it.append(child);
    return it;
  };
  const code = text => make("code", {}, text);
  // `words` between backticks are code, blank lines part paragraphs.
  const prose = text => (text || "").split("\n\n").filter(Boolean).map(part =>
    make("p", {}, part.split("`").map((piece, n) => n % 2 ? code(piece) : piece)));
  const line = text => (text || "").split("`").map((piece, n) => n % 2 ? code(piece) : piece);

  const link = it => make("a", {href: "#schema-" + nameOf(it)}, nameOf(it));
  const types = it => [].concat(it.type || []);
  // One line that says what a value may be.
  const kind = it => {
    if (it.$ref) return [link(it)];
    const forms = it.oneOf || it.anyOf;
    if (forms) return forms.flatMap((form, n) => n ? [" or ", ...kind(form)] : kind(form));
    if ("const" in it) return [code(JSON.stringify(it.const))];
    if (it.enum) return it.enum.flatMap((word, n) => n ? [" ", code(word)] : [code(word)]);
    if (types(it).includes("array")) return ["list of ", ...kind(it.items || {})];
    if (types(it).includes("object") && it.additionalProperties && !it.properties) return ["map to ", ...kind(it.additionalProperties)];
    const limits = [];
    if (it.minimum != null) limits.push("from " + it.minimum);
    if (it.maximum != null) limits.push("to " + it.maximum);
    if (it.maxLength != null) limits.push("at most " + it.maxLength + " characters");
    return [[types(it).join(" or ") || "anything", it.format && "(" + it.format + ")", ...limits].filter(Boolean).join(" ")];
  };
  const fields = it => {
    const list = make("div", {class: "fields"});
    for (const [name, field] of Object.entries(it.properties || {})) {
      const must = (it.required || []).includes(name);
      list.append(
        make("div", {}, make("code", must ? {class: "must", title: "always there"} : {}, name)),
        make("div", {}, kind(field), field.description ? make("div", {class: "quiet"}, line(field.description)) : null));
      const inner = types(field).includes("array") ? field.items || {} : field;
      if (inner.properties) list.append(fields(inner));
    }
    return list;
  };
  const shape = it => {
    if (it.properties) return [fields(it)];
    const forms = it.oneOf || it.anyOf;
    if (forms && forms.some(form => form.properties))
      return forms.map(form => form.properties ? fields(form) : make("p", {}, kind(form)));
    return [make("p", {}, kind(it))];
  };

  const json = value => JSON.stringify(value, null, 2);
  const copied = text => {
    const button = make("button", {class: "copy", type: "button"}, "copy");
    button.onclick = () => navigator.clipboard.writeText(text).then(() => { button.textContent = "copied"; });
    return make("pre", {}, button, make("code", {}, text));
  };
  const quote = text => "'" + text.replaceAll("'", "'\\''") + "'";
  const shell = (method, path, operation, body) => {
    const filled = path.replace(/\{(\w+)\}/g, (_, name) => {
      const schema = deref((operation.parameters.map(deref).find(it => it.name === name && it.in === "path") || {}).schema);
      return (schema.examples || schema.enum || ["…"])[0];
    });
    const parts = ["curl -s"];
    if (method !== "get") parts.push("-X " + method.toUpperCase());
    parts.push(location.origin + filled);
    if (!operation.security) parts.push("-H \"authorization: Bearer $COMEBACK_API_KEY\"");
    if (body !== undefined) parts.push("-H content-type:application/json", "-d " + quote(JSON.stringify(body)));
    return parts.join(" \\\n  ");
  };

  const route = (method, path, operation) => {
    const inside = make("div", {class: "inside"});
    const fill = () => {
      inside.append(...prose(operation.description));
      if (operation["x-roles"]) inside.append(make("p", {class: "quiet"}, "Roles: ", operation["x-roles"].flatMap(role => [make("span", {class: "role"}, role), " "])));
      const parameters = operation.parameters.map(deref);
      if (parameters.length) {
        const list = make("div", {class: "fields"});
        for (const it of parameters)
          list.append(
            make("div", {}, make("code", it.required ? {class: "must", title: "needed"} : {}, it.name), make("span", {class: "quiet"}, " " + it.in)),
            make("div", {}, kind(it.schema), make("div", {class: "quiet"}, line(it.description))));
        inside.append(make("h4", {}, "Parameters"), list);
      }
      const body = ((operation.requestBody || {}).content || {})["application/json"];
      if (body) {
        inside.append(make("h4", {}, operation.requestBody.required ? "Body" : "Body, which may be left out"));
        for (const form of body.schema.oneOf || [body.schema]) inside.append(make("p", {}, kind(form)), ...shape(deref(form)));
      }
      const examples = body ? Object.values(body.examples || {}).map(it => it.value) : [];
      inside.append(make("h4", {}, "Try it"));
      for (const example of examples.length ? examples : [undefined]) inside.append(copied(shell(method, path, operation, example)));
      inside.append(make("h4", {}, "Answers"));
      for (const [status, answer] of Object.entries(operation.responses)) {
        const it = deref(answer);
        inside.append(make("div", {class: "status"}, code(status), make("div", {}, prose(it.description))));
        const [media, content] = Object.entries(it.content || {})[0] || [];
        if (status < 300 && content) {
          inside.append(make("p", {class: "quiet"}, code(media), " ", kind(content.schema)));
          if (!content.schema.$ref) inside.append(...shape(content.schema));
          if (content.example !== undefined && media === "application/json" && Object.keys(content.example).length)
            inside.append(make("details", {class: "more"}, make("summary", {}, "Example"), copied(json(content.example))));
        }
      }
    };
    const it = make("details", {class: "route", id: operation.operationId},
      make("summary", {}, make("span", {class: "verb " + method}, method.toUpperCase()), code(path), make("span", {class: "quiet"}, operation.summary)),
      inside);
    // Most of them are never opened.
    it.addEventListener("toggle", () => { if (it.open && !inside.firstChild) fill(); });
    return it;
  };

  const all = Object.entries(api.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({path, method, operation})));
  const search = make("input", {type: "search", placeholder: "Find a route", "aria-label": "Find a route"});
  const list = make("div", {class: "list"});
  const nav = make("nav", {"aria-label": "Routes"}, make("p", {}, make("b", {}, api.info.title), make("span", {class: "quiet"}, " " + api.info.version)), search, list);
  const main = make("main", {},
    make("h1", {}, api.info.title + " API"), ...prose(api.info.description),
    make("p", {}, "The same for programs: ", make("a", {href: "/openapi.json"}, "/openapi.json"), "."));
  const shown = [];
  for (const tag of api.tags) {
    const own = all.filter(it => it.operation.tags.includes(tag.name));
    const head = make("h3", {}, tag.name);
    const section = make("section", {}, make("h2", {id: "tag-" + tag.name}, tag.name), make("p", {class: "quiet"}, tag.description));
    list.append(head);
    const entries = own.map(({method, path, operation}) => {
      const element = route(method, path, operation);
      const entry = make("a", {href: "#" + operation.operationId}, make("span", {class: "verb " + method}, method.toUpperCase()), operation.summary);
      list.append(entry);
      section.append(element);
      return {element, entry, words: [method, path, operation.summary, operation.operationId].join(" ").toLowerCase()};
    });
    main.append(section);
    shown.push({head, section, entries});
  }
  const schemas = make("section", {}, make("h2", {}, "Schemas"));
  for (const [name, schema] of Object.entries(api.components.schemas)) {
    const inside = make("div", {class: "inside"});
    const it = make("details", {class: "route", id: "schema-" + name}, make("summary", {}, code(name)), inside);
    it.addEventListener("toggle", () => {
      if (!it.open || inside.firstChild) return;
      inside.append(...prose(schema.description), ...shape(schema));
      if (schema.examples) inside.append(make("p", {}, "For example ", schema.examples.flatMap((it, n) => [n ? ", " : "", code(JSON.stringify(it))])));
    });
    schemas.append(it);
  }
  main.append(schemas);

  search.oninput = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const {head, section, entries} of shown) {
      let any = false;
      for (const it of entries) {
        const fits = words.every(word => it.words.includes(word));
        it.element.hidden = it.entry.hidden = !fits;
        any = any || fits;
      }
      head.hidden = section.hidden = !any;
    }
    schemas.hidden = words.length > 0;
  };
  const open = () => {
    const it = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (it && it.tagName === "DETAILS") { it.open = true; it.scrollIntoView(); }
  };
  document.body.append(nav, main);
  addEventListener("hashchange", open);
  open();
})().catch(error => document.body.append("This page could not be drawn: " + error));
