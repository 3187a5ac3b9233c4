// A form that did not do what it was sent for is there again as it was sent: in this tab, for the same person, never a
// password. It is filled in, and nothing is sent by itself. Pages with such a form, and those that lead back to one, load this.
(() => {
  'use strict'
  const { actor } = document.documentElement.dataset
  const find = (selector, from = document) => from.querySelector(selector)
  const all = (selector, from = document) => [...from.querySelectorAll(selector)]
  // Sent, until its answer is here (app.js forgets it then); and not done, until it is there again.
  const [SENT, BACK] = ['wakeboard-form', 'wakeboard-form-back']
  const keep = (name, what) => {
    try {
      sessionStorage.removeItem(name)
      if (what) sessionStorage.setItem(name, JSON.stringify(what))
    } catch { /* storage may be denied, or full: then the page says what does not come along */ }
  }
  const kept = name => {
    try {
      const what = JSON.parse(sessionStorage.getItem(name))
      return actor && what?.by !== actor ? null : what
    } catch { return null }
  }
  const question = address => {
    const { pathname, searchParams } = new URL(address, location)
    for (const beside of ['next', 'reason']) searchParams.delete(beside)
    return `${pathname}?${searchParams}`
  }
  const fields = form => all('[name]:not(button, [type=password], [type=hidden]:not([data-typed]))', form)
  const isSwitch = field => field.matches('[type=checkbox], [type=radio]')
  document.addEventListener('submit', event => {
    const form = event.target
    if (!actor || (event.submitter?.formMethod || form.method) !== 'post') return
    keep(BACK, null)
    keep(SENT, { by: actor, at: question(form.action), sent: fields(form).map(field => [field.name, field.value, field.checked]) })
  })

  const put = (field, value, checked) => {
    const before = field.value
    if (before !== value || (isSwitch(field) && field.checked !== checked)) field.closest('details')?.setAttribute('open', '')
    if (isSwitch(field)) field.checked = checked
    else field.value = value
    if (field.value === value) return true
    field.value = before
    return false
  }
  const fillIn = (form, sent) => {
    const left = sent.filter(([name, value, checked]) => {
      const field = fields(form).find(each => each.name === name && (!isSwitch(each) || each.value === value))
      return !(field && put(field, value, checked))
    })
    const made = find('#toast').content.cloneNode(true)
    find('.toast', made).classList.replace('refused', 'asked')
    find('p', made).textContent = `This form is as you sent it${left.length ? ', but for what has no place in it now' : ''}: look it over before you send it again.`
    find('#toasts').append(made)
  }

  const again = find('[data-again]')
  const form = find('main form[method=post]')
  const [sent, back] = [kept(SENT), kept(BACK)]
  keep(SENT, null)
  if (again) {
    // A page that is loaded again brings the same form: what was kept of it still is.
    const what = [sent, back].find(each => each?.at === question(again.dataset.again))
    if (what) keep(BACK, what)
    const isKept = Boolean(what && kept(BACK))
    for (const says of all('[data-lost], [data-kept]', again)) says.hidden = says.matches('[data-kept]') !== isKept
  } else if (actor && form && back?.at === question(location)) {
    keep(BACK, null)
    fillIn(form, back.sent)
  }
})()
