// Makes the pages live: everything here is a comfort over pages that work without it.
// Nothing is evaluated, nothing is written as HTML: text goes in by textContent, markup comes from the server.
(() => {
  'use strict'
  const root = document.documentElement
  const find = (selector, from = document) => from.querySelector(selector)
  const all = (selector, from = document) => [...from.querySelectorAll(selector)]
  // As it is: the server takes a cookie literally, and the names of zones need no quoting.
  const remember = (name, value) => { document.cookie = `wakeboard_${name}=${value.replace(/[^\w/+-]/g, '')};path=/;max-age=31536000;samesite=lax` }
  const drawer = of => ({
    read(name) { try { return of()?.getItem(name) ?? null } catch { return null } },
    write(name, value) { try { value === null ? of().removeItem(name) : of().setItem(name, value) } catch { /* storage may be denied */ } },
  })
  const kept = drawer(() => localStorage)
  const keptHere = drawer(() => sessionStorage)
  root.classList.add('js')

  // htmx: its HTML goes through one Trusted Types policy; a <details> that a person opened stays open over a morph,
  // a cell keeps its label of a phone, a frame whether its table fits, and a heading that was given the focus that.
  htmx.registerExtension('tt', {
    init(api) {
      if (window.trustedTypes) api.initSecurity(trustedTypes.createPolicy('htmx', { createHTML: text => text, createScript: () => '' }))
    },
  })
  htmx.registerExtension('keep-open', {
    htmx_before_morph_attr(element, detail) {
      if (detail.attrName === 'tabindex' && element === document.activeElement) return false
      return !(element.tagName === 'DETAILS' && detail.attrName === 'open') && !/^data-(head|fits)$/.test(detail.attrName)
    },
  })

  // Relative times: the server's clock, not this machine's.
  let skew = Number(root.dataset.now) * 1000 - Date.now()
  const amount = seconds => {
    const s = Math.max(0, Math.round(seconds))
    if (s < 60) return `${s} s`
    if (s < 3600) return `${Math.floor(s / 60)} min`
    if (s < 36000 && s % 3600 >= 60) return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`
    if (s < 172800) return `${Math.floor(s / 3600)} h`
    return `${Math.floor(s / 86400)} d`
  }
  let onPaper = false
  const worded = (element, now) => {
    if ((onPaper || root.dataset.times === 'absolute') && element.dataset.relative !== 'elapsed') return element.title.split(' = ')[0]
    const seconds = (now - Date.parse(element.dateTime)) / 1000
    if (element.dataset.relative === 'elapsed') return amount(seconds)
    return seconds >= 0 ? `${amount(seconds)} ago` : `in ${amount(-seconds)}`
  }
  const tick = () => {
    const now = Date.now() + skew
    for (const element of all('time[data-relative]')) {
      const text = worded(element, now)
      if (element.textContent !== text) element.textContent = text
    }
    for (const bar of all('meter[data-until]')) bar.value = Math.max(0, (Date.parse(bar.dataset.until) - now) / 1000)
  }
  setInterval(() => { if (!document.hidden) tick() }, 1000)
  // "2 min ago" says nothing on paper.
  matchMedia('print').addEventListener('change', event => { onPaper = event.matches; tick() })

  // Live regions: paused by the button (in this tab, also on its next pages), by a hidden tab, and while boxes are checked.
  let paused = false
  const live = detail => detail.ctx?.sourceElement?.closest?.('[data-live]') === detail.ctx?.sourceElement && detail.ctx?.sourceElement
  const frozen = region => Boolean(find('input[data-row]:checked', region))
  const refresh = () => htmx.trigger(document, 'live:now')
  const pause = (to, says = true) => {
    paused = to
    keptHere.write('wakeboard-paused', to ? 'yes' : null)
    root.classList.toggle('paused', to)
    const button = find('#pause')
    if (!button) return
    button.setAttribute('aria-pressed', String(to))
    find('.label', button).textContent = to ? 'Resume live' : 'Pause live'
    find('use', button).setAttribute('href', find('use', button).getAttribute('href').replace(/#.*/, to ? '#play' : '#pause'))
    if (find('#clock-word')) find('#clock-word').textContent = to ? 'Paused at ' : 'Updated '
    if (!to) refresh()
    else if (says) toast('Paused: every page of this tab stands still until you resume (p).', 'asked')
  }

  // A region that missed two polls in a row is stale: what it shows stays, and the banner says of when it is.
  const trouble = new Map()
  let arrivedAt = 0
  let isAway = false
  const tell = () => {
    const banner = find('#stale')
    const late = [...trouble].filter(([region, { count }]) => region.isConnected && count > 1).map(([, what]) => what)
    banner.hidden = !late.length && !isAway
    root.classList.toggle('stale', !banner.hidden)
    find('a', banner).hidden = !isAway
    if (isAway) { find('span', banner).textContent = 'You were signed out. What you typed or checked is still here: sign in in another tab and go on.'; return }
    if (!late.length) return
    const { says, since, from } = late.sort((one, other) => one.from - other.from)[0]
    const rest = arrivedAt > from ? `A part of this page is as it was at ${since}.` : `Shown is what was known at ${since}.`
    find('span', banner).textContent = `${says} ${rest}`
  }
  const missed = (region, status) => {
    const before = trouble.get(region)
    const says = status === 503 ? 'The database does not answer.'
      : status === -1 ? 'Something between here and the dashboard answered in its place; perhaps you have to sign in there again.'
      : status ? `The dashboard answered with an error (${status}).` : 'The dashboard does not answer.'
    const since = before?.since ?? find('#clock')?.textContent ?? 'an unknown time'
    trouble.set(region, { count: (before?.count ?? 0) + 1, says, since, from: before?.from ?? Date.now() })
    tell()
  }
  const fresh = (region, headers) => {
    isAway = false
    trouble.delete(region)
    arrivedAt = Date.now()
    tell()
    const behind = headers.get('X-Wakeboard-Behind')
    find('#behind').hidden = !behind
    if (behind) find('#behind b').textContent = amount(Number(behind))
    const clock = headers.get('X-Wakeboard-Clock')
    if (!clock) return
    // An answer that others were given before is true of then.
    const asOf = headers.get('X-Wakeboard-As-Of')
    skew = Date.parse(asOf) + 1000 * Number(headers.get('X-Wakeboard-Age')) - Date.now()
    if (find('#clock')) find('#clock').textContent = clock.replace(/^\S+ /, '')
    // The foot dates what the page is about: where only the count in the head is live, that is as old as the page.
    if (!find('main [data-live]')) return
    if (find('#as-of')) find('#as-of').textContent = clock
    if (find('#as-of-utc')) find('#as-of-utc').textContent = `${asOf.slice(0, 19).replace('T', ' ')} UTC`
  }
  // Signed out elsewhere, expired, revoked: to the sign-in page and back here, but never away from what somebody typed.
  const isTouched = field => (field.type === 'checkbox' ? field.matches('[data-row]') && field.checked : field.type !== 'hidden' && field.value !== field.defaultValue)
  const isBusy = () => Boolean(find('dialog[open]')) || all('main input, main textarea, dialog[open] input').some(isTouched)
  const signIn = address => {
    find('#stale a').href = address
    if (isBusy()) { isAway = true; tell() } else location.assign(address)
  }
  const sentence = ctx => (ctx.response.headers.get('Content-Type') || '').startsWith('text/plain') && ctx.text
  document.addEventListener('htmx:before:request', event => {
    const region = live(event.detail)
    if (region && (paused || document.hidden || frozen(region))) event.preventDefault()
  })
  // Before anything of an answer is read: is it ours, and are we still signed in?
  document.addEventListener('htmx:before:response', event => {
    const { ctx } = event.detail
    const region = live(event.detail)
    if (!ctx.response.headers.get('X-Request-Id')) {
      event.preventDefault()
      if (region) missed(region, -1)
      else toast('Something between here and the dashboard answered in its place, so nothing was done. Load this page again; perhaps you have to sign in.')
    } else if (region && ctx.response.status === 401) {
      event.preventDefault()
      signIn(ctx.response.headers.get('HX-Redirect') || '/login')
    }
  })
  document.addEventListener('htmx:after:request', event => {
    const { ctx } = event.detail
    const region = live(event.detail)
    if (ctx.response.status >= 400) return
    if (region) fresh(region, ctx.response.headers)
    else unsent(null)
  })
  document.addEventListener('htmx:response:error', event => {
    const { status } = event.detail.ctx.response
    const region = live(event.detail)
    if (region) missed(region, status)
    else if (status === 401) unsent({ reason: '', ...unsentReason(), url: event.detail.ctx.request.action, at: location.pathname, isSignedOut: true })
    else toast(sentence(event.detail.ctx) || `That did not work (error ${status}). Look at the list before you try again.`)
  })
  document.addEventListener('htmx:error', event => {
    if (!event.detail.ctx) return
    const region = live(event.detail)
    if (region) missed(region, 0)
    else toast('The dashboard does not answer. Look at the list before you try again.')
  })
  document.addEventListener('htmx:before:swap', event => stood.set(event.detail.ctx, place(document.activeElement)))
  document.addEventListener('htmx:after:swap', event => { label(); tick(); badge(); select(); fit(); refocus(stood.get(event.detail.ctx)) })
  document.addEventListener('visibilitychange', () => { if (!document.hidden && !paused) { tick(); refresh() } })

  // A swap may take away or disable what has the focus: a verb gives its place to another, a row leaves its list. The
  // focus goes to what stands in that place then, or near it; in another row to its link, never to a verb.
  const stood = new WeakMap()
  const buttons = from => all('button, a.button', from)
  const place = element => {
    const region = element?.closest('[data-live]')
    if (!region || region === element) return null
    const row = element.closest('tr[id], [data-verbs]')
    const at = buttons(row || region).indexOf(element)
    return { id: element.id, region, row: row?.id, at, rowAt: all('tr[id]', region).indexOf(row) }
  }
  const refocus = before => {
    if (!before?.region.isConnected || !document.activeElement?.matches('body, :disabled, dialog:not([open]) *')) return
    const { id, region, row, at, rowAt } = before
    const rest = all('tr[id]', region)
    const here = find(row ? `#${CSS.escape(row)}` : '[data-verbs]', region)
    const verbs = at < 0 || (row && !here) ? [] : buttons(here || region)
    const near = here || rest[Math.min(rowAt, rest.length - 1)]
    const heading = find('h2, h3', region) || find('h1')
    const goals = [id && document.getElementById(id), ...verbs.slice(at), ...verbs.slice(0, at).reverse(), near && find('a', near), heading]
    goals.find(goal => {
      if (!goal || goal.disabled) return false
      if (goal === heading) goal.tabIndex = -1
      goal.focus({ preventScroll: true })
      return document.activeElement === goal
    })
  }

  // The tab's title and icon say how many things need a person: what all pages count, or what this one sees beyond it.
  const plain = document.title.replace(/^\(\d+\+?\) /, '')
  const badge = () => {
    const attention = Math.max(0, ...all('[data-attention]').map(element => Number(element.dataset.attention)))
    const title = attention ? `(${attention > 9999 ? '9999+' : attention}) ${plain}` : plain
    if (document.title !== title) document.title = title
    const icon = find('link[rel=icon]')
    const wanted = attention ? icon.dataset.alert : icon.dataset.calm
    if (icon.getAttribute('href') !== wanted) icon.setAttribute('href', wanted)
  }

  // On a phone each row of a wide table becomes lines of labelled cells; the labels are the heads of the columns.
  const narrow = matchMedia('(max-width: 600px)')
  const label = () => {
    if (!narrow.matches) return
    for (const table of all('.frame:not(.cards) > table')) {
      const heads = all('thead th', table).map(head => (find('input, a, .visually-hidden', head) ? '' : head.textContent.trim()))
      for (const cell of all('tbody > tr > td', table)) {
        const head = heads[cell.cellIndex] || ''
        if (cell.dataset.head !== head) cell.dataset.head = head
      }
    }
  }
  narrow.addEventListener('change', label)

  // The heads of a table stick under the bar where it fits into its frame.
  const widths = new ResizeObserver(() => all('.frame > table').forEach(table => {
    const frame = table.parentElement
    frame.toggleAttribute('data-fits', table.offsetWidth <= frame.clientWidth + 1)
  }))
  const fit = () => all('.frame:has(> table), .frame > table').forEach(each => widths.observe(each))

  // Toasts leave after ten seconds unless someone is reading them; refusals stay.
  const toast = (text, tone = 'refused') => {
    const made = find('#toast').content.cloneNode(true)
    find('.toast', made).classList.replace('refused', tone)
    find('p', made).textContent = text
    find('#toasts').append(made)
  }
  const leave = element => setTimeout(() => {
    if (element.matches(':hover, :focus-within')) leave(element)
    else element.remove()
  }, 10000)
  const watch = element => { if (!element.dataset.seen && !element.classList.contains('refused')) { element.dataset.seen = '1'; leave(element) } }
  new MutationObserver(() => all('#toasts > .toast').forEach(watch)).observe(find('#toasts'), { childList: true })
  all('#toasts > .toast').forEach(watch)

  // A reason that was typed for a verb which did not arrive is there again when the verb is asked for again, in this
  // tab, for the same person; also after signing in.
  const unsent = what => keptHere.write('wakeboard-unsent', what && JSON.stringify({ ...what, by: root.dataset.actor }))
  const unsentReason = () => {
    const what = JSON.parse(keptHere.read('wakeboard-unsent') || 'null')
    if (what && what.by !== root.dataset.actor) { if (root.dataset.actor) unsent(null); return null }
    return what
  }

  // Asking before what cannot be undone: focus is on "Keep", Escape keeps.
  document.addEventListener('htmx:confirm', event => {
    event.preventDefault()
    const { ctx, issueRequest, dropRequest } = event.detail
    if (ctx.sourceElement.dataset.many && select() < 2) { issueRequest(); return }
    const dialog = find('#confirm')
    const reason = find('input', dialog)
    find('[data-say]', dialog).textContent = ctx.confirm.replace('{count}', () => { const count = select(); return count === 1 ? '1 run' : `${count} runs` })
    find('[value=yes]', dialog).textContent = ctx.sourceElement.dataset.does || 'Do it'
    const until = find('select', dialog)
    const before = unsentReason()
    until.value = ''
    until.closest('label').hidden = !ctx.sourceElement.hasAttribute('data-until')
    reason.value = before?.url === ctx.request.action ? before.reason : ''
    dialog.returnValue = 'keep'
    // The dialog gives the focus back by itself, but not to what was taken away meanwhile.
    const asker = place(document.activeElement)
    dialog.addEventListener('close', () => {
      refocus(asker)
      if (dialog.returnValue !== 'yes') { dropRequest(); return }
      if (until.value) ctx.request.body?.set?.('until', until.value)
      const typed = reason.value.trim()
      if (typed) ctx.request.body?.set?.('reason', typed)
      unsent(typed ? { url: ctx.request.action, reason: typed, at: location.pathname } : null)
      issueRequest()
    }, { once: true })
    dialog.showModal()
  })

  // Checked rows: the list stands still and the bar says so.
  const boxes = () => all('input[data-row]')
  const select = () => {
    const count = boxes().filter(box => box.checked).length
    for (const bar of all('.bulk')) {
      bar.classList.toggle('on', count > 0)
      for (const place of all('[data-count]', bar)) place.textContent = String(count)
    }
    const every = find('input[data-check-all]')
    if (every) { every.checked = count > 0 && count === boxes().length; every.indeterminate = count > 0 && !every.checked }
    return count
  }
  const clear = () => {
    boxes().forEach(box => { box.checked = false })
    all('.bulk input[type=checkbox]').forEach(box => { box.checked = false })
    select()
  }
  let last = null
  document.addEventListener('click', event => {
    const box = event.target.closest('input[data-row]')
    if (box) {
      const list = boxes()
      if (event.shiftKey && last && list.includes(last)) {
        const [from, to] = [list.indexOf(last), list.indexOf(box)].sort((a, b) => a - b)
        list.slice(from, to + 1).forEach(each => { each.checked = box.checked })
      }
      last = box
      if (!select()) refresh()
      return
    }
    const button = event.target.closest('[data-do]')
    if (button) commands[button.dataset.do]?.(button)
  })
  document.addEventListener('change', event => {
    const { target } = event
    if (target.matches('input[data-check-all]')) {
      boxes().forEach(box => { box.checked = target.checked })
      if (!select()) refresh()
    }
    if (target.matches('select[data-submit]')) target.form.requestSubmit()
    if (target.dataset.remember !== undefined) {
      remember(target.id, target.value)
      root.dataset[target.id] = target.value
      if (target.dataset.remember === 'reload') location.reload()
      else tick()
    }
    if (target.id === 'keys-on') { kept.write('wakeboard-keys', target.checked ? 'on' : 'off'); hints() }
  })
  document.addEventListener('selection:clear', clear)

  const copy = async button => {
    const from = document.getElementById(button.dataset.copyFrom)
    const text = from?.textContent || button.dataset.copy || location.href
    try {
      await navigator.clipboard.writeText(text)
      toast('Copied.', 'done')
    } catch {
      const box = document.createElement('textarea')
      box.value = text
      button.after(box)
      box.select()
    }
  }
  const commands = {
    pause: () => pause(!paused),
    keys: () => find('#keys').showModal(),
    close: button => button.closest('.toast').remove(),
    clear: () => { clear(); refresh() },
    refresh,
    copy,
  }

  // Keyboard: never while typing, off when the operator says so (WCAG 2.1.4).
  const rows = () => all('tbody tr[id]')
  const current = () => document.activeElement?.closest?.('tbody tr[id]')
  const step = by => {
    const list = rows()
    if (!list.length) return use('j')
    const at = list.indexOf(current())
    const row = list[Math.min(list.length - 1, Math.max(0, at + by))]
    const goal = find('a', row) || find('button, input', row) || row
    goal.focus()
    row.scrollIntoView({ block: 'nearest' })
  }
  // What a key acts on: in a row that has the focus, or on the page.
  const use = (key, selector, place) => {
    if (!place) return toast(rows().length ? 'No row has the focus (j, k).' : 'There is no row here.', 'already')
    const found = find(selector, place)
    if (found && !found.disabled) return found
    const state = place !== document && find('.badge', place)?.textContent.trim()
    toast(found ? `Nothing was done: ${found.title}.` : `The key ${key} does nothing ${state ? `where the state is ${state}` : 'here'}.`, 'already')
  }
  // htmx wires buttons in a timeout of its own, asked for before this one: a click before that would leave the page.
  const wired = new Promise(resolve => setTimeout(resolve))
  const press = key => wired.then(() => {
    const place = find('.bulk.on') || current() || find('[data-verbs]')
    const button = use(key, `[data-key="${key}"]`, place)
    if (!button) return
    const { ask } = button.dataset
    if (ask) button.setAttribute('hx-confirm', ask)
    button.click()
    if (ask) button.removeAttribute('hx-confirm')
  })
  const places = () => Object.fromEntries(all('a[data-go]').map(link => [link.dataset.go, link]))
  let going = false
  const pressed = {
    j: () => step(1),
    k: () => step(-1),
    x: () => use('x', 'input[data-row]', current())?.click(),
    h: () => use('h', '.pager a[rel=prev]', document)?.click(),
    l: () => use('l', '.pager a[rel=next]', document)?.click(),
    o: () => use('o', 'a', current())?.click(),
    r: () => press('r'),
    c: () => press('c'),
    p: () => pause(!paused),
    '/': () => { const box = use('/', '[data-filter]', document); box?.focus(); box?.select() },
    '?': () => find('#keys').showModal(),
    g: () => { going = true; setTimeout(() => { going = false }, 1500) },
  }
  document.addEventListener('keydown', event => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return
    // Enter on a box would send the form of all that is checked.
    if (event.key === 'Enter' && event.target.matches('input[data-row], input[data-check-all]')) { event.preventDefault(); return }
    if (event.target.closest('input:not([type=checkbox]), textarea, select, [contenteditable], dialog[open]')) return
    if (kept.read('wakeboard-keys') === 'off') return
    const goal = going && places()[event.key]
    going = false
    if (goal) { event.preventDefault(); goal.click(); return }
    if (!Object.hasOwn(pressed, event.key)) return
    event.preventDefault()
    pressed[event.key]()
  })
  // A menu closes when something else is clicked or focused, and on Escape, which gives the focus back to its name.
  const closeMenus = except => { for (const menu of all('details.menu[open]')) if (!menu.contains(except)) menu.open = false }
  document.addEventListener('click', event => closeMenus(event.target))
  document.addEventListener('focusin', event => closeMenus(event.target))
  document.addEventListener('keydown', event => {
    const menu = event.key === 'Escape' && find('details.menu[open]')
    if (!menu) return
    menu.open = false
    find('summary', menu).focus()
  })

  const own = Intl.DateTimeFormat().resolvedOptions().timeZone
  const zone = find('#zone')
  if (zone && own && !all('option', zone).some(option => option.value === own)) zone.add(new Option(`${own} (this browser)`, own))
  const hints = () => {
    const isOff = kept.read('wakeboard-keys') === 'off'
    root.classList.toggle('no-keys', isOff)
    if (find('#keys-on')) find('#keys-on').checked = !isOff
  }
  const lost = unsentReason()
  if (lost?.isSignedOut && lost.at === location.pathname) {
    toast(`You had to sign in again before that was done, so it was not.${lost.reason && ` Your reason is kept for when you ask again: “${lost.reason}”`}`, 'already')
    unsent({ ...lost, isSignedOut: false })
  }
  // What forms.js keeps is forgotten when its answer is here, when something was done, and before anybody else.
  document.addEventListener('submit', event => { if (event.target.matches('[action="/logout"]')) keptHere.write('wakeboard-form-back', null) })
  const { by } = JSON.parse(keptHere.read('wakeboard-form-back')) || {}
  if (!find('[data-again]')) keptHere.write('wakeboard-form', null)
  if (find('#toasts > .done') || (root.dataset.actor && by !== root.dataset.actor)) keptHere.write('wakeboard-form-back', null)
  if (keptHere.read('wakeboard-paused')) pause(true, false)
  find('.nav .links [aria-current]')?.scrollIntoView({ inline: 'center', block: 'nearest' })
  hints(); label(); tick(); badge(); select(); fit()
})()
